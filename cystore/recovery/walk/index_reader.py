"""Index files as recovery reads them: with pread, without trusting header or entries."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from cystore._native.derived import index_chains
from cystore.config import StoreConfig
from cystore.derived.files.index import DIRECTORY
from cystore.derived.files.index_layout import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexHeader,
    file_length,
    shape_in_file,
)
from cystore.layout import INDEX_ENTRY, INDEX_HEADER
from cystore.system import files
from cystore.system.ranges import file_ranges
from cystore.value_class import value_class

NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
BLOCK_ENTRIES = 200
PIECE_BYTES = 64 * 1024


@value_class
class IndexReader:
    """One index file, read with pread."""

    path: Path
    slots: int
    capacity: int
    header: IndexHeader
    _block: tuple[int, bytes] = (0, b"")

    @property
    def count(self) -> int:
        """Number of the next entry; the file's length bounds a damaged header's value."""
        return min(max(self.header.next_entry, 1), self.capacity)

    def read_entries(self, first: int, count: int) -> bytes:
        at = HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * first
        with files.opened(self.path) as fd:
            return files.pread_full(fd, at, ENTRY_BYTES * count, self.path)

    def _entry(self, number: int) -> bytes:
        """One entry; the entries around it are kept for the next call."""
        first, data = self._block
        at = ENTRY_BYTES * (number - first)
        if not 0 <= at < len(data):
            first = number - number % BLOCK_ENTRIES
            data = self.read_entries(first, min(BLOCK_ENTRIES, self.capacity - first))
            self._block = first, data
            at = ENTRY_BYTES * (number - first)
        return data[at : at + ENTRY_BYTES]

    def read_slots(self) -> bytes:
        with files.opened(self.path) as fd:
            return files.pread_full(fd, HEADER_BYTES, SLOT_BYTES * self.slots, self.path)

    def has_slots(self, slots: mmap.mmap, used: int) -> bool:
        """Whether these are the file's hash slots, of which so many are in use. Reads pieces: memory for all of them at
        once takes longer than the comparison."""
        found = 0
        with files.opened(self.path) as fd:
            for at in range(0, len(slots), PIECE_BYTES):
                size = min(PIECE_BYTES, len(slots) - at)
                piece = files.pread_full(fd, HEADER_BYTES + at, size, self.path)
                count = index_chains.used(slots, piece, at // SLOT_BYTES) if len(piece) == size else -1
                if count < 0:
                    return False
                found += count
        return found == used

    def physical_offset(self, number: int) -> int:
        """The physical offset of an entry; -1 for an unwritten one."""
        if self._is_first_of_log(number):
            return 0
        data = self._entry(number)
        key_hash, physical_offset, seconds, previous = INDEX_ENTRY.unpack(data)
        written = any(data) and key_hash >= 0 and seconds >= 0 and 0 <= previous < number
        return physical_offset if written else -1

    def below(self, physical_offset: int) -> int:
        """Number behind the last entry that points below a log position; entries ascend."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if 0 <= self.physical_offset(middle) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_first_of_log(self, number: int) -> bool:
        """Whether an all-zero entry is a real one: the entry of hash 0 for the record at 0 is all zero."""
        return number == 1 and self.header.begin_physical_offset == 0 and self.header.end_physical_offset > 0

    @property
    def sound(self) -> bool:
        """Whether header and first entry agree."""
        head = self.header
        if (
            not 1 <= max(head.next_entry, 1) <= self.capacity
            or head.begin_physical_offset > head.end_physical_offset
        ):
            return False
        return self.count == 1 or self.physical_offset(1) == head.begin_physical_offset

    @property
    def whole(self) -> bool:
        """Whether the last entry is the one that the header names as the last."""
        return self.count == 1 or self.physical_offset(self.count - 1) == self.header.end_physical_offset


def list_index(root: Path, config: StoreConfig) -> tuple[list[IndexReader], list[Path]]:
    """The index files of the configured shape, oldest first, and those of another shape."""
    slots, capacity = config.max_hash_slot_num, config.max_index_num
    directory = root / DIRECTORY
    readers: list[IndexReader] = []
    strange: list[Path] = []
    for name in [entry.name for entry in files.entries(directory) if NAME.match(entry.name)]:
        path = directory / name
        with files.opened(path) as fd:
            head, length = files.pread_full(fd, 0, HEADER_BYTES, path), file_ranges.length_of(fd, path)
        if length == file_length(slots, capacity):
            readers.append(IndexReader(path, slots, capacity, IndexHeader(*INDEX_HEADER.unpack(head))))
        else:
            strange.append(path)
    return readers, strange


def list_readable_index(root: Path, config: StoreConfig) -> tuple[list[IndexReader], list[Path]]:
    """The index files of the configured shape or of a shape that their entries imply, oldest first, and those of
    unknown shape. A file of another shape without entries is in neither list."""
    readers, strange = list_index(root, config)
    silent: list[Path] = []
    for path in strange:
        with files.opened(path) as fd:
            head, length = files.pread_full(fd, 0, HEADER_BYTES, path), file_ranges.length_of(fd, path)
        has_entries, shape = shape_in_file(path, length)
        if shape is not None:
            readers.append(IndexReader(path, *shape, IndexHeader(*INDEX_HEADER.unpack(head))))
        elif has_entries:
            silent.append(path)
    return sorted(readers, key=lambda reader: reader.path.name), silent


def knows_its_shape(path: Path) -> bool:
    """Whether the shape of a file with another shape than the settings' can be found, or the file has no entry;
    otherwise it was damaged."""
    with files.opened(path) as fd:
        length = file_ranges.length_of(fd, path)
    has_entries, shape = shape_in_file(path, length)
    return shape is not None or not has_entries
