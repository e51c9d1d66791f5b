"""A DLedger broker's directory, for commands that look at stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cystore.config import StoreConfig
from cystore.dledger.place import check_at_rest, find
from cystore.dledger.source import Source
from cystore.operate.output import write_note
from cystore.operate.progress import progress


@contextlib.contextmanager
def ledger(path: Path, config: StoreConfig) -> Iterator[Source | None]:
    """The DLedger at `path`, None for anything else. Reports on standard error that it is a DLedger, and afterwards the
    entries that the checkpoint does not call committed. Raises StoreLockedError while a broker runs on it."""
    place = find(path)
    if place is None:
        yield None
        return
    check_at_rest(place)
    with progress() as report:
        source = Source(place, config.mapped_file_size_commit_log_bytes, report)
        try:
            write_note(f"{place.folder} is a DLedger; `cystore import` makes a store of it")
            yield source
            _say_the_end(source)
        finally:
            source.close()


def _say_the_end(source: Source) -> None:
    walk, committed = source.walk, source.committed
    if walk.last > committed:
        write_note(f"entries {committed + 1} to {walk.last} are not known to be committed")
    if walk.tail:
        write_note(f"the last entry ends at {walk.end}; the bytes there are no entry ({walk.tail})")
