"""Reads a pack, which may be foreign, damaged or made to do harm: every name and every length is checked before
anything is written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cystore.operate.packs.members import (
    BLOCK_BYTES,
    FILES_MAX,
    FIRST,
    LAST,
    SEGMENTS_MAX,
    PackError,
    PackFacts,
    longest,
    parse_facts,
    parse_header,
    place_of,
    segment_base,
)

END_BYTES_MAX = 1 << 20  # of zeros behind the last member: tar writes whole records of blocks


class Piece(NamedTuple):
    """Bytes of one file of the store; `base` is its log position if it is a segment."""

    name: str
    base: int | None
    offset: int
    data: bytes


class PackReader:
    """One pack. `first` is known at once, `last` when all pieces were read."""

    def __init__(self, take: Callable[[int], bytes], path: Path) -> None:
        self._take, self._path = take, path
        self._ends: dict[str, int] = {}  # of the pieces so far, of each file
        self._segments = 0
        block = take(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES or block == bytes(BLOCK_BYTES):
            raise PackError("is no pack of a store: it is empty, or too short", path=path)
        name, size = parse_header(block, path)
        if name != FIRST:
            raise PackError(f"is no pack of a store: it begins with {name!r}, not with {FIRST}", path=path)
        self.first = parse_facts(self._content(size), path)
        if self.first.file_bytes < 1:
            raise PackError(f"is damaged: segments have {self.first.file_bytes} bytes", path=path)
        self.last: PackFacts | None = None

    def pieces(self) -> Iterator[Piece]:
        """All pieces in their order. Raises PackError at the first one that is wrong, and at the end if one is
        missing."""
        count = checksum = 0
        while True:
            name, size = parse_header(self._block(), self._path)
            if name == LAST:
                break
            piece = self._checked(name, size)
            count += 1
            checksum = zlib.crc32(name.encode("utf-8", "surrogateescape"), checksum)
            data = self._content(size)
            checksum = zlib.crc32(data, checksum)
            yield piece._replace(data=data)
        last = parse_facts(self._content(size), self._path)
        if (last.pieces, last.checksum) != (count, checksum):
            raise PackError(
                "is damaged: its pieces are not those that it was made of (number or checksum)",
                path=self._path,
            )
        self._check_segments(last)
        rest = self._take(END_BYTES_MAX + 1)
        if len(rest) > END_BYTES_MAX or rest.count(0) != len(rest):
            raise PackError("is damaged: there is more behind its end", path=self._path)
        self.last = last

    def _checked(self, member: str, size: int) -> Piece:
        """The place of a piece, which may go there."""
        name, offset = place_of(member, self._path)
        most, base, known = longest(name, self._path), segment_base(name), self._ends.get(name)
        if base is not None:
            most = self.first.file_bytes
            if base % most or base > (1 << 62):
                raise PackError(f"has a segment {name!r}, which is no multiple of {most}", path=self._path)
            self._segments += known is None
        before = known or 0
        wrong = offset < before if base is not None else offset != before
        if wrong or offset + size > most:
            raise PackError(
                f"has a member {member!r} of {size} bytes, which does not follow the {before} bytes before it, or "
                f"passes the {most} of its file",
                path=self._path,
            )
        if self._segments > SEGMENTS_MAX or len(self._ends) - self._segments > FILES_MAX:
            raise PackError("has more files than any store", path=self._path)
        self._ends[name] = offset + size
        return Piece(name, base, offset, b"")

    def _check_segments(self, last: PackFacts) -> None:
        """Each segment of the log has a piece. Others, which the cleaner removed while the pack was made, may be
        there: `PackFacts.begin` says so."""
        file_bytes = self.first.file_bytes
        first = last.begin - last.begin % file_bytes
        wanted = range(first, last.end, file_bytes)
        found = {base for name in self._ends if (base := segment_base(name)) is not None and base >= first}
        if len(wanted) != len(found) or any(base not in found for base in wanted):
            raise PackError(
                f"is damaged: the segments of its log from {last.begin} to {last.end} are not all there",
                path=self._path,
            )

    def _block(self) -> bytes:
        block = self._take(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES or block == bytes(BLOCK_BYTES):
            raise PackError("ends early: it was cut, or its making was", path=self._path)
        return block

    def _content(self, size: int) -> bytes:
        data = self._take(size)
        if len(data) == size and len(self._take(-size % BLOCK_BYTES)) == -size % BLOCK_BYTES:
            return data
        raise PackError("ends early: it was cut, or its making was", path=self._path)
