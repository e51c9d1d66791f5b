"""Verifies a DLedger: its entries, the records in them, the old log, and the index files against the entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cystore.dledger.checkpoint import TERM, current_term
from cystore.dledger.entries import INDEX_ENTRY, Bad, Entry
from cystore.dledger.pieces import Pieces
from cystore.dledger.place import INDEX
from cystore.dledger.source import Source
from cystore.layout import FOREIGN_CONSTANTS
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.log_reader import LogReader

INDEX_FILE_BYTES = FOREIGN_CONSTANTS["LEDGER_INDEX_FILE_BYTES"][0]


def verify(source: Source) -> Iterator[Damage]:
    """Every damaged range. `kind` is record (of the old log), entry or entry_index."""
    index = _IndexFiles(source)
    term = -1
    for found in source.records(uncommitted=True):
        if isinstance(found, Bad):
            yield _damage(source, found)
        elif isinstance(found, Entry):
            term = found.term
            yield from index.compare(found)
    yield from index.rest()
    known = current_term(source.place.folder)
    if known is not None and term > known:
        reason = f"the last entry has term {term}, the member knows only {known}"
        yield Damage("entry", source.place.folder / TERM, source.walk.end, source.walk.end, reason)
    index.close()


def _damage(source: Source, bad: Bad) -> Damage:
    is_old = source.old is not None and bad.begin < source.begin
    reader = source.old if is_old else source.reader
    assert reader is not None
    base = reader.base_of(bad.begin)
    path = reader.path(base) if reader.has(base) else reader.directory
    return Damage("record" if is_old else "entry", path, bad.begin, bad.end, bad.reason)


class _IndexFiles:
    """Compares the index files with the entries, one after the other; adjacent wrong index entries form one range."""

    def __init__(self, source: Source) -> None:
        self._reader = LogReader(source.place.folder, INDEX_FILE_BYTES, INDEX)
        self._pieces = Pieces(self._reader)
        self._committed = source.committed
        self._open: Damage | None = None

    def close(self) -> None:
        self._reader.close()

    def compare(self, entry: Entry) -> Iterator[Damage]:
        reader, at = self._reader, entry.index * INDEX_ENTRY.size
        base = reader.base_of(at)
        there = self._pieces.read(at, INDEX_ENTRY.size) if reader.has(base) else b""
        if there == entry.index_bytes():
            yield from self.rest()
            return
        if entry.index > self._committed and not any(there):
            return  # DLedger writes this index entry again when it starts
        reason = f"not what entry {entry.index} needs" if any(there) else f"of entry {entry.index} is missing"
        path, begin = reader.path(base), at - base
        if self._open is not None and self._open.path == path and self._open.end == begin:
            self._open = replace(self._open, end=begin + INDEX_ENTRY.size)
            return
        yield from self.rest()
        self._open = Damage("entry_index", path, begin, begin + INDEX_ENTRY.size, reason)

    def rest(self) -> Iterator[Damage]:
        """The open range of wrong index entries, which ends here."""
        if self._open is not None:
            yield self._open
        self._open = None
