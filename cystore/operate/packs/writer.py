"""Writes a pack: pieces of files, in the order in which they come."""

from __future__ import annotations

import zlib
from pathlib import Path

from cystore.operate.packs.members import (
    BLOCK_BYTES,
    FIRST,
    LAST,
    PIECE_BYTES,
    PackFacts,
    header,
    longest,
    padding,
    render_facts,
)
from cystore.operate.packs.streams import Sink
from cystore.system.files import data_ranges, pread_full

ZEROS = bytes(PIECE_BYTES)


class PackWriter:
    """One pack in the making. Keeps a piece in memory, and no more."""

    def __init__(self, sink: Sink, path: Path, first: PackFacts) -> None:
        self._sink, self._path, self._file_bytes = sink, path, first.file_bytes
        self._pieces = self._checksum = 0
        self._member(FIRST, render_facts(first))

    def data(self, name: str, data: bytes) -> None:
        """A whole file that is in memory."""
        longest(name, self._path)
        self._piece(name, 0, data[:PIECE_BYTES])
        for at in range(PIECE_BYTES, len(data), PIECE_BYTES):
            self._piece(name, at, data[at : at + PIECE_BYTES])

    def file(self, name: str, fd: int, source: Path, length: int) -> None:
        """`length` bytes of an open file."""
        longest(name, self._path)
        for at in range(0, max(length, 1), PIECE_BYTES):
            self._piece(name, at, pread_full(fd, at, min(PIECE_BYTES, length - at), source))

    def segment(self, name: str, fd: int, source: Path, begin: int, end: int) -> None:
        """[begin, end) of an open segment, without what was never written."""
        self._piece(name, begin, b"")  # the segment exists
        for data, hole in data_ranges(fd, begin, end, source):
            for at in range(data, hole, PIECE_BYTES):
                piece = pread_full(fd, at, min(PIECE_BYTES, hole - at), source)
                if piece != ZEROS[: len(piece)]:
                    self._piece(name, at, piece)

    def finish(self, begin: int, end: int) -> None:
        """Ends the pack, whose log is [begin, end)."""
        self._member(
            LAST, render_facts(PackFacts(begin, end, self._file_bytes, self._pieces, self._checksum))
        )
        self._sink.write(bytes(2 * BLOCK_BYTES))

    def _piece(self, name: str, offset: int, data: bytes) -> None:
        member = f"{name}@{offset}"
        self._pieces += 1
        self._checksum = zlib.crc32(
            data, zlib.crc32(member.encode("utf-8", "surrogateescape"), self._checksum)
        )
        self._member(member, data)

    def _member(self, member: str, data: bytes) -> None:
        self._sink.write(header(member, len(data), self._path) + data + padding(len(data)))
