"""A DLedger as the format says, read in the simplest way, without a line of cystore."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

HEAD = struct.Struct(">iiqqqiiii")  # magic, size, index, term, pos, channel, chain CRC, body CRC, body size
INDEX_ENTRY = struct.Struct(">iqiqq")  # magic, pos, size, index, term
INDEX_BYTES = INDEX_ENTRY.size * 5 * 1024 * 1024  # of a file; no setting of RocketMQ changes it


@dataclass(frozen=True)
class Entry:
    index: int
    term: int
    pos: int
    size: int
    body: bytes

    @property
    def physical_offset(self) -> int:
        return self.pos + HEAD.size


def entries(folder: Path) -> list[Entry]:
    """Every entry of the data files up to the first place where none stands."""
    found: list[Entry] = []
    for path in sorted((folder / "data").iterdir()):
        data, base, at = path.read_bytes(), int(path.name), 0
        while at + HEAD.size <= len(data):
            magic, size, index, term, pos, _, _, _, body_size = HEAD.unpack_from(data, at)
            if magic != 1 or pos != base + at:
                break
            assert size == body_size + HEAD.size
            found.append(Entry(index, term, pos, size, data[at + HEAD.size : at + size]))
            at += size
    return found


def committed(folder: Path) -> list[Entry]:
    last = int(properties(folder / "checkpoint")["committedIndex"])
    return [entry for entry in entries(folder) if entry.index <= last]


def properties(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def ledger_of(store: Path) -> Path:
    (folder,) = store.glob("dledger-*")
    return folder


def cut_index_files(store: Path) -> None:
    """Cuts the index files behind their last entry."""
    for path in (ledger_of(store) / "index").iterdir():
        with open(path, "r+b") as file:
            base, end = int(path.name), 0
            while True:
                _, _, size, index, _ = INDEX_ENTRY.unpack(file.read(INDEX_ENTRY.size))
                if size == 0 or index * INDEX_ENTRY.size != base + end:
                    break
                end += INDEX_ENTRY.size
            file.truncate(end)


def grow_index_files(store: Path) -> None:
    """Undoes `cut_index_files`; the rest is a hole again."""
    for path in (ledger_of(store) / "index").iterdir():
        with open(path, "r+b") as file:
            file.truncate(INDEX_BYTES)
