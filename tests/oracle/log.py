"""The commit log as a run of files, and the walk from record to record."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.oracle.record import Blank, NotValid, Record, encode, encode_blank, parse


@dataclass(frozen=True)
class Log:
    """Files of one size, each with the physical offset of its first byte."""

    file_size: int
    files: dict[int, bytes]

    @property
    def minimum(self) -> int:
        return min(self.files, default=0)

    @property
    def last(self) -> int:
        return max(self.files, default=0)

    def item(self, offset: int) -> Record | Blank:
        """The valid record or blank that begins at `offset` and lies in one file."""
        base = offset - offset % self.file_size
        if base not in self.files:
            raise NotValid(f"no file for offset {offset}")
        found = parse(self.files[base], offset - base)
        if isinstance(found, Record) and found.physical_offset != offset:
            raise NotValid(f"record of offset {found.physical_offset} at {offset}")
        return found

    def walk(self, begin: int | None = None, end: int | None = None) -> Iterator[tuple[int, Record | Blank]]:
        """Every record and blank from `begin`, stopping before the first that is not valid, or at `end`."""
        offset = self.minimum if begin is None else begin
        while end is None or offset < end:
            try:
                found = self.item(offset)
            except NotValid:
                return
            yield offset, found
            offset += found.size

    def records(self, begin: int | None = None, end: int | None = None) -> list[Record]:
        return [found for _, found in self.walk(begin, end) if isinstance(found, Record)]

    def zeroed_from(self, end: int) -> dict[int, bytes]:
        """The files after a cut at `end`: zeros behind it, files wholly behind it gone."""
        kept = {}
        for base, data in self.files.items():
            if base < end:
                keep = min(len(data), end - base)
                kept[base] = data[:keep] + bytes(len(data) - keep)
        return kept


def read_files(directory: Path) -> dict[int, bytes]:
    """Every file of a mapped file queue by the number in its name."""
    found = sorted(p for p in directory.iterdir() if p.name.isdigit()) if directory.is_dir() else []
    return {int(p.name): p.read_bytes() for p in found}


def read_log(store: Path) -> Log:
    files = read_files(store / "commitlog")
    sizes = {len(data) for data in files.values()}
    if len(sizes) > 1:
        raise ValueError(f"commit log files of sizes {sizes}")
    return Log(sizes.pop() if sizes else 0, files)


def lay_out(records: list[Record], file_size: int, begin: int = 0) -> tuple[Log, list[Record], int]:
    """Write records one after another with their physical offsets and the blanks between files.

    Gives the log, the records as written and the offset behind the last.
    """
    base, files, written = begin - begin % file_size, {}, []
    data = bytearray(file_size)
    at = begin - base
    for record in records:
        bare = encode(record)
        if bare.size + 8 > file_size:
            raise ValueError(f"record of {bare.size} bytes in a file of {file_size}")
        if at + bare.size + 8 > file_size:
            data[at : at + 8] = encode_blank(file_size - at)
            files[base] = bytes(data)
            base, at, data = base + file_size, 0, bytearray(file_size)
        placed = encode(replace(record, physical_offset=base + at))
        data[at : at + placed.size] = placed.raw
        at += placed.size
        written.append(placed)
    files[base] = bytes(data)
    return Log(file_size, files), written, base + at
