"""All records of a DLedger broker in their order: first those of the old commit log, then those of the entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cystore.dledger.checkpoint import committed_index
from cystore.dledger.entries import Bad, Entry
from cystore.dledger.entry_walk import EntryWalk
from cystore.dledger.old_log import OldRecord, old_records
from cystore.dledger.place import Place
from cystore.engine.inspect.recognize import LEDGER_DATA
from cystore.engine.log.commit_log import DIRECTORY
from cystore.recovery.walk.log_reader import LogReader
from cystore.system import files

Stored = OldRecord | Entry
Progress = Callable[[str, int, int], None]
REPORT_EVERY = 1024


class Source:
    """The files as they are at the start: records that a broker appends meanwhile are not read.

    `committed` is the last committed index by the checkpoint, -1 if it is unknown. After `records`, `walk` knows the
    end of the log.
    """

    def __init__(self, place: Place, file_bytes: int, progress: Progress | None = None) -> None:
        self.place, self._progress = place, progress
        self.committed = committed_index(place.folder)
        self.reader = LogReader(place.folder, file_bytes, LEDGER_DATA)
        has_old = any(entry.is_file() for entry in files.entries(place.root / DIRECTORY))
        self.old = LogReader(place.root, file_bytes) if has_old else None
        self.walk = EntryWalk(self.reader, self.committed)

    @property
    def begin(self) -> int:
        """The begin of the DLedger."""
        return self.reader.begin

    @property
    def first(self) -> int:
        """The first physical offset: above 0 if the broker's cleaner removed files."""
        return self.reader.begin if self.old is None else self.old.begin

    def file_of(self, offset: int) -> Path:
        """The file that has a physical offset, or would have it."""
        reader = self.reader if self.old is None or offset >= self.begin else self.old
        return reader.path(reader.base_of(offset))

    @property
    def data_bytes(self) -> int:
        """Length of all files together."""
        return sum(sum(reader.lengths.values()) for reader in (self.reader, self.old) if reader is not None)

    def close(self) -> None:
        for reader in (self.reader, self.old):
            if reader is not None:
                reader.close()

    def records(self, *, uncommitted: bool) -> Iterator[Stored | Bad]:
        """Every damaged range and every record; without `uncommitted`, records only up to the last committed entry."""
        for number, found in enumerate(self._all()):
            if self._progress is not None and number % REPORT_EVERY == 0:
                self._show(found)
            if uncommitted or not isinstance(found, Entry) or found.index <= self.committed:
                yield found

    def _all(self) -> Iterator[Stored | Bad]:
        if self.old is not None:
            end = self.begin if self.reader.bases else self.old.end
            yield from old_records(self.old, end)
        yield from self.walk.run()

    def _show(self, found: Stored | Bad) -> None:
        assert self._progress is not None
        first = self.first
        at = found.begin if isinstance(found, Bad) else found.physical_offset
        self._progress("reading the DLedger", at - first, max(self.reader.end - first, 1))
