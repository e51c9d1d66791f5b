"""The layout of an index file, and what its bytes tell of its shape: the numbers of its slots and entries.

Source: IndexFile, IndexHeader.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from cystore._native.memory.mapping import MappedFile
from cystore.layout import CONSTANTS, INDEX_ENTRY, INDEX_HEADER, field_of
from cystore.system import files

HEADER_BYTES = CONSTANTS["INDEX_HEADER_BYTES"][0]
SLOT_BYTES = CONSTANTS["INDEX_SLOT_BYTES"][0]
ENTRY_BYTES = CONSTANTS["INDEX_ENTRY_BYTES"][0]
MAX_GUESSES = 100_000  # places tried for the last entry of a file of unknown shape
_, _END_OFFSET = field_of("index_header", "end_physical_offset")
_SLOT = struct.Struct(">i")  # number of the newest entry


class IndexHeader(NamedTuple):
    """First and last store timestamp (ms) and physical offset of a file, its used slots and the number of the next
    entry."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    used_slots: int
    next_entry: int

    @property
    def has_begun(self) -> bool:
        """Whether the file has entries, or the begin and end of an empty one. If a dispatcher ends before it writes
        these, the file before this one may have entries of an unfinished record."""
        return self.next_entry > 1 or self.end_physical_offset > 0


def read_header(file: MappedFile) -> IndexHeader:
    """The header of a mapped file."""
    return header_of(file.read(0, HEADER_BYTES))


def header_of(data: bytes) -> IndexHeader:
    """The header that these bytes are."""
    header = IndexHeader(*INDEX_HEADER.unpack(data))
    return header._replace(next_entry=max(header.next_entry, 1))


def file_length(slots: int, capacity: int) -> int:
    """Length of a file with these slots and entries (including entry 0, which is never used)."""
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * capacity


def shape_in_file(path: Path, length: int) -> tuple[bool, tuple[int, int] | None]:
    """For a file whose shape is not that of the settings: whether it has entries, and the slots and capacity that they
    imply, None if they imply none."""
    if length <= file_length(1, 1):
        return True, None
    with files.opened(path) as fd, mmap.mmap(fd, length, access=mmap.ACCESS_READ) as data:
        header = IndexHeader(*INDEX_HEADER.unpack(data[:HEADER_BYTES]))
        if header.next_entry <= 1:
            return False, None
        return True, _shape_from_entries(data, length, header)


def _shape_from_entries(data: mmap.mmap, length: int, header: IndexHeader) -> tuple[int, int] | None:
    """Slots and capacity of a file whose settings are not known, from the place of its last entry.

    The last entry holds the header's end offset; from its place follows the number of slots, and then its key hash
    must lead to a slot that holds an entry number, and the first entry must hold the header's begin offset.
    """
    number, wanted = header.next_entry - 1, _END_OFFSET.pack(header.end_physical_offset)
    at = data.find(wanted, HEADER_BYTES)
    for _ in range(MAX_GUESSES):
        if at < 0:
            break
        slots, odd = divmod(at - 4 - HEADER_BYTES - ENTRY_BYTES * number, SLOT_BYTES)
        capacity, rest = divmod(length - HEADER_BYTES - SLOT_BYTES * slots, ENTRY_BYTES)
        if not odd and not rest and slots > 0 and capacity > number:
            key_hash = INDEX_ENTRY.unpack_from(data, at - 4)[0]
            (chain,) = _SLOT.unpack_from(data, HEADER_BYTES + SLOT_BYTES * (key_hash % slots))
            first = INDEX_ENTRY.unpack_from(data, HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES)
            if (
                key_hash >= 0
                and chain == number
                and first[1] == header.begin_physical_offset
                and first[3] == 0
            ):
                return slots, capacity
        at = data.find(wanted, at + 1)
    return None
