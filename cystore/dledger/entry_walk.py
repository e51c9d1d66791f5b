"""The walk over the entries of a DLedger, up to the log's end.

Source: DLedgerMmapFileStore.recover. DLedger truncates its log at the first invalid entry of the last files. Here an
invalid entry is damage if the checkpoint counts it as committed, or if valid entries follow it; otherwise the log ends
there.
"""

from __future__ import annotations

from collections.abc import Iterator

from cystore.dledger.entries import (
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    HEAD,
    HEAD_BYTES,
    MAGIC_BYTES,
    Bad,
    Entry,
    InvalidEntry,
    parsed,
    size_of,
)
from cystore.dledger.pieces import Pieces
from cystore.recovery.walk.log_reader import PIECE_BYTES, LogReader


class EntryWalk:
    """One walk from the first data file on; `run` gives entries and damaged ranges in their order.

    Afterwards `end` is the position after the last entry, and `last` is its index (-1: none). `tail` is the reason why
    the bytes at `end` are no entry; it is empty if there are only zeros.
    """

    def __init__(self, reader: LogReader, committed: int) -> None:
        self._reader, self._pieces, self._committed = reader, Pieces(reader), committed
        self.end = reader.begin
        self.last = self.term = -1
        self.tail = ""

    def run(self) -> Iterator[Entry | Bad]:
        """Every entry and every damaged range."""
        reader, at = self._reader, self._reader.begin
        while at < reader.end:
            file_end = self._pieces.file_end(at)
            try:
                found = self._entry(at, file_end)
            except InvalidEntry as error:
                resumed = self._behind(at, str(error))
                if resumed is None:
                    return
                yield Bad(at, resumed, str(error))
                at = resumed
                continue
            if found is None:
                at = file_end
                continue
            self.last, self.term, self.end = found.index, found.term, found.end
            yield found
            at = found.end
        if self.last < self._committed:
            yield from self._missing()

    def _entry(self, at: int, file_end: int) -> Entry | None:
        """The entry at `at`; None for a blank. Raises InvalidEntry."""
        if not self._reader.has(self._reader.base_of(at)):
            raise InvalidEntry("the data file is missing")
        head = self._pieces.read(at, HEAD_BYTES)
        magic, size = HEAD.unpack_from(head.ljust(HEAD_BYTES, b"\0"))[:2]
        if magic == BLANK_MAGIC:
            if size != file_end - at or size < BLANK_SIZE_MIN:
                raise InvalidEntry(f"a blank of {size} bytes, the file has {file_end - at} left")
            return None
        entry = parsed(self._pieces.read(at, size_of(head, at, file_end - at)), at)
        if self.last >= 0 and entry.index != self.last + 1:
            raise InvalidEntry(f"index is {entry.index} behind {self.last}")
        if entry.term < self.term:
            raise InvalidEntry(f"term is {entry.term} behind {self.term}")
        return entry

    def _behind(self, at: int, reason: str) -> int | None:
        """The position at which the walk continues after an invalid entry; None if the log ends before it."""
        entry = self._next(at + 1)
        if entry is not None:
            self.last = entry.index - 1
            return entry.pos
        if self.last >= self._committed:
            there = self._reader.has(self._reader.base_of(at))
            dirty = there and self._reader.nonzero(at, self._pieces.file_end(at)) is not None
            self.tail = reason if dirty else ""
            return None
        self.last = max(self.last, self._committed)
        return self._reader.end

    def _next(self, at: int) -> Entry | None:
        """The first valid entry from `at` on that may follow the last one."""
        reader = self._reader
        for base in [base for base in reader.bases if base + reader.file_bytes > at]:
            first, file_end = max(base, at), base + reader.file_bytes
            for begin, end in reader.data_ranges(first, file_end):
                # The magic begins with zeros, which may be the end of a hole.
                entry = self._next_in(max(begin - len(MAGIC_BYTES), first), end, file_end)
                if entry is not None:
                    return entry
        return None

    def _next_in(self, begin: int, end: int, file_end: int) -> Entry | None:
        for piece_begin in range(begin, end, PIECE_BYTES):
            piece = self._reader.read(piece_begin, PIECE_BYTES + HEAD_BYTES)
            place = piece.find(MAGIC_BYTES)
            while 0 <= place < PIECE_BYTES and piece_begin + place < end:
                entry = self._candidate(piece[place : place + HEAD_BYTES], piece_begin + place, file_end)
                if entry is not None:
                    return entry
                place = piece.find(MAGIC_BYTES, place + 1)
        return None

    def _candidate(self, head: bytes, at: int, file_end: int) -> Entry | None:
        try:
            size = size_of(head, at, file_end - at)
            entry = parsed(self._pieces.read(at, size), at)
        except InvalidEntry:
            return None
        # Old entries may follow the end of a log that a new leader has truncated.
        return entry if entry.index > self.last and entry.term >= self.term else None

    def _missing(self) -> Iterator[Bad]:
        end = max(self.end, self._reader.begin)
        yield Bad(
            end,
            end,
            f"the last entry is {self.last}, but the checkpoint says that {self._committed} is committed",
        )
