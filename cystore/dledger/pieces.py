"""Bytes of a log's files, read in pieces of a few MiB with pread."""

from __future__ import annotations

from cystore.recovery.walk.log_reader import PIECE_BYTES, LogReader


class Pieces:
    """Reads ahead, because entries are read one after the other."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader
        self._begin, self._data = 0, b""

    def file_end(self, offset: int) -> int:
        """The end of the file that contains `offset`."""
        return self.reader.base_of(offset) + self.reader.file_bytes

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`, or as many as the file has from there."""
        count = min(count, self.file_end(offset) - offset)
        at = offset - self._begin
        if not (self._data and at >= 0 and at + count <= len(self._data)):
            self._begin, self._data = offset, self.reader.read(offset, max(count, PIECE_BYTES))
            at = 0
        return self._data[at : at + count]
