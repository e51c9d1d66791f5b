"""Consume queues as recovery reads them: with pread, without trusting an entry."""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cystore.derived.consume_queue import DIRECTORY, ENTRY_BYTES
from cystore.engine.segments import base_of_name, file_name
from cystore.layout import CONSTANTS
from cystore.system import files

TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}\Z", re.ASCII)
HOLE_SIZE = CONSTANTS["HOLE_ENTRY_SIZE"][0]
BLOCK_BYTES = 4096 // ENTRY_BYTES * ENTRY_BYTES
_ENTRY = struct.Struct(">qiq")
HOLE_BYTES = _ENTRY.pack(0, HOLE_SIZE, 0)
MANY = 3200  # entries read at once where many may be holes


@dataclass(frozen=True)
class Entry:
    """One entry: where the record is, how long, and the tags code."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def written(self) -> bool:
        """Whether it can be an entry at all; what was never written is zero."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def hole(self) -> bool:
        """Pre-blank or hole: it stands for no message."""
        return self.size == HOLE_SIZE and self.physical_offset == 0


def entry_in(data: bytes, at: int) -> Entry:
    """The entry whose bytes begin at `at`."""
    return Entry(*_ENTRY.unpack_from(data, at))


@dataclass
class QueueReader:
    """The files of one (topic, queue id) that follow each other without a gap; queue offsets count entries."""

    topic: str
    queue_id: int
    directory: Path
    file_bytes: int
    bases: list[int] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)
    _block: tuple[int, bytes] = (-1, b"")

    @property
    def first(self) -> int:
        """Queue offset of the first entry that the files have room for."""
        return self.bases[0] // ENTRY_BYTES if self.bases else 0

    @property
    def limit(self) -> int:
        """Behind the last one."""
        return (self.bases[-1] + self.file_bytes) // ENTRY_BYTES if self.bases else 0

    def path(self, base: int) -> Path:
        return self.directory / file_name(base)

    def read(self, begin: int, count: int) -> bytes:
        """The bytes of up to `count` entries from queue offset `begin` on; fewer at the end of a file."""
        position = begin * ENTRY_BYTES
        base = position - position % self.file_bytes
        with files.opened(self.path(base)) as fd:
            length = min(count * ENTRY_BYTES, base + self.file_bytes - position)
            return files.pread_full(fd, position - base, length, self.path(base))

    def entry(self, number: int) -> Entry:
        """The entry of a queue offset from `first` to before `limit`."""
        position = number * ENTRY_BYTES
        at = self._block[0]
        if not at <= position < at + len(self._block[1]) or at < 0:
            inside = position % self.file_bytes
            at = position - inside % BLOCK_BYTES
            self._block = at, self.read(at // ENTRY_BYTES, BLOCK_BYTES // ENTRY_BYTES)
        return entry_in(self._block[1], position - at)

    def below(self, physical_offset: int) -> int:
        """Behind the last entry that points below `physical_offset`: entries ascend, hole entries go with the one before."""
        low, high = self.first, self.limit
        while True:
            found = self._bisect(low, high, physical_offset)
            before = self.message_before(found)
            if before < 0 or self.entry(before).physical_offset < physical_offset:
                return found
            high = before

    def _bisect(self, low: int, high: int, physical_offset: int) -> int:
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry.written and entry.physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def message_before(self, number: int) -> int:
        """The last queue offset below `number` whose entry is no hole, -1 when there is none."""
        while number > self.first:
            begin = max(
                self.first,
                number - MANY,
                (number - 1) * ENTRY_BYTES // self.file_bytes * self.file_bytes // ENTRY_BYTES,
            )
            if self.read(begin, number - begin) != HOLE_BYTES * (number - begin):
                # All of them may be hole entries all the same: one whose tags code was hit is a hole entry still.
                for at in range(number - 1, begin - 1, -1):
                    if not self.entry(at).hole:
                        return at
            number = begin
        return -1

    def first_message(self, physical_offset: int, end: int) -> int:
        """The first queue offset below `end` whose entry stands for a message at or past `physical_offset`, `end` when there
        is none (ConsumeQueue.correctMinOffset)."""
        number = self.first
        if number >= end:
            return end
        if self.entry(number).hole or self.entry(number).physical_offset < physical_offset:
            number = min(self.below(physical_offset), end)
        return self.next_message(number, end)

    def next_message(self, number: int, end: int) -> int:
        """The first queue offset of [number, end) whose entry is no hole, `end` when there is none."""
        while number < end:
            found = self.read(number, min(MANY, end - number))
            if found != HOLE_BYTES * (len(found) // ENTRY_BYTES):
                while number < end and self.entry(number).hole:
                    number += 1
                return number
            number += len(found) // ENTRY_BYTES
        return end

    def all_holes(self, begin: int, end: int) -> bool:
        """Whether every entry of [begin, end) is a hole entry."""
        while begin < end:
            found = self.read(begin, min(MANY, end - begin))
            if not found or found != HOLE_BYTES * (len(found) // ENTRY_BYTES):
                return False
            begin += len(found) // ENTRY_BYTES
        return True

    def nonzero_from(self, number: int) -> bool:
        """Whether anything stands at or behind a queue offset."""
        for base in self.bases:
            begin = max(number * ENTRY_BYTES - base, 0)
            if begin >= self.file_bytes:
                continue
            with files.opened(self.path(base)) as fd:
                for data, hole in files.data_ranges(fd, begin, self.file_bytes, self.path(base)):
                    if any(files.pread_full(fd, data, hole - data, self.path(base))):
                        return True
        return False


def list_queues(
    root: Path, configured_bytes: int, warnings: list[str]
) -> tuple[dict[tuple[str, int], QueueReader], int]:
    """Every consume queue on disk, and how long their files are.

    Files of another length than most, and files behind a missing one, are strays: what they held follows from the log.
    """
    found: dict[tuple[str, int], tuple[Path, dict[int, int]]] = {}
    folder = root / DIRECTORY
    for topic in _folders(folder):
        if not TOPIC.match(topic):
            warnings.append(f"{folder / topic} is no consume queue: a topic cannot have that name")
            continue
        for name in _folders(folder / topic):
            if not name.isdecimal() or str(int(name)) != name or int(name) >= 1 << 31:
                warnings.append(f"{folder / topic / name} is no consume queue: the name is no queue id")
                continue
            found[topic, int(name)] = folder / topic / name, _lengths(folder / topic / name)
    file_bytes = _file_bytes(
        [length for _, lengths in found.values() for length in lengths.values()], configured_bytes
    )
    if file_bytes != configured_bytes:
        warnings.append(
            f"consume queue files have {file_bytes} bytes, the configuration says {configured_bytes}"
        )
    return {
        (topic, queue_id): _reader(topic, queue_id, directory, lengths, file_bytes)
        for (topic, queue_id), (directory, lengths) in found.items()
    }, file_bytes


def open_queue(root: Path, topic: str, queue_id: int, file_bytes: int) -> QueueReader | None:
    """One consume queue whose files have `file_bytes`; None where there is no file."""
    directory = root / DIRECTORY / topic / str(queue_id)
    lengths = _lengths(directory)
    return _reader(topic, queue_id, directory, lengths, file_bytes) if lengths else None


def _folders(path: Path) -> list[str]:
    return [entry.name for entry in files.entries(path) if entry.is_dir(follow_symlinks=False)]


def _lengths(directory: Path) -> dict[int, int]:
    with files.translated(directory):
        return {
            base: size
            for entry in files.entries(directory)
            if (base := base_of_name(entry.name)) is not None and (size := files.size_of(entry)) is not None
        }


def _file_bytes(lengths: list[int], configured: int) -> int:
    """The length that most files have; the configured one where no file has a possible length."""
    possible = Counter(length for length in lengths if length > 0 and length % ENTRY_BYTES == 0)
    if not possible:
        return configured
    return max(possible, key=lambda length: (possible[length], length == configured, length))


def _reader(
    topic: str, queue_id: int, directory: Path, lengths: dict[int, int], file_bytes: int
) -> QueueReader:
    reader = QueueReader(topic, queue_id, directory, file_bytes)
    for base, length in sorted(lengths.items()):
        follows = not reader.bases or base == reader.bases[-1] + file_bytes
        if length == file_bytes and base % file_bytes == 0 and follows:
            reader.bases.append(base)
        else:
            reader.strays.append(reader.path(base))
    return reader
