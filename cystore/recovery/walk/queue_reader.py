"""Consume queues as recovery reads them: with pread, without trusting an entry."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cystore._native.scan import log_walk
from cystore.derived.files.consume_queue import DIRECTORY, ENTRY_BYTES
from cystore.engine.files.segments import base_of_name, file_name
from cystore.engine.manifest.topic_names import is_topic
from cystore.layout import CONSTANTS, QUEUE_ENTRY
from cystore.system import files, folders

HOLE_SIZE = CONSTANTS["HOLE_ENTRY_SIZE"][0]
BLOCK_BYTES = 4096 // ENTRY_BYTES * ENTRY_BYTES
HOLE_BYTES = QUEUE_ENTRY.pack(0, HOLE_SIZE, 0)
MANY = 3200  # entries read at once where many may be holes
FIRST_BYTES = 4096
NOT_READ = -1, b""
FIRST_ONLY = (0,)
FIRST_NAME = file_name(0)
# (base, length) of each file of a queue, and the head of its only file.
Listed = tuple[list[tuple[int, int]], bytes | None]


class Entry(NamedTuple):
    """One entry: place and length of the record, and the tags code."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def written(self) -> bool:
        """Whether these bytes can be an entry; an unwritten entry is zero."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def hole(self) -> bool:
        """Whether the entry is a pre-blank or a hole: it stands for no message."""
        return self.size == HOLE_SIZE and self.physical_offset == 0


def entry_in(data: bytes, at: int) -> Entry:
    """The entry whose bytes begin at `at`."""
    return Entry(*QUEUE_ENTRY.unpack_from(data, at))


class QueueReader:
    """The files of one (topic, queue id) that follow each other without a gap; queue offsets count entries.

    A store may have tens of thousands of queues, so a reader holds little: `head` is the begin of the first file, up to
    its last byte that is not zero, if the queue has nothing else; then no more is read from the disk.
    """

    __slots__ = ("_block", "bases", "file_bytes", "folder", "head", "queue_id", "strays", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        folder: Path,
        file_bytes: int,
        bases: tuple[int, ...] = (),
        strays: tuple[Path, ...] = (),
        head: bytes | None = None,
    ) -> None:
        self.topic, self.queue_id, self.folder, self.file_bytes = topic, queue_id, folder, file_bytes
        self.bases, self.strays, self.head = bases, strays, head
        self._block = NOT_READ

    @property
    def directory(self) -> Path:
        """The folder that the files are in."""
        return self.folder / self.topic / str(self.queue_id)

    @property
    def first(self) -> int:
        """Queue offset of the first entry that the files have room for."""
        return self.bases[0] // ENTRY_BYTES if self.bases else 0

    @property
    def limit(self) -> int:
        """Queue offset behind the last entry that the files have room for."""
        return (self.bases[-1] + self.file_bytes) // ENTRY_BYTES if self.bases else 0

    def path(self, base: int) -> Path:
        return self.directory / file_name(base)

    def read(self, begin: int, count: int) -> bytes:
        """The bytes of up to `count` entries from queue offset `begin` on; fewer at the end of a file."""
        position = begin * ENTRY_BYTES
        base = position - position % self.file_bytes
        length = min(count * ENTRY_BYTES, base + self.file_bytes - position)
        if self.head is not None:
            inside = position - self.bases[0]
            return self.head[inside : inside + length].ljust(length, b"\0")
        with files.opened(self.path(base)) as fd:
            return files.pread_full(fd, position - base, length, self.path(base))

    def read_some(self, begin: int, count: int) -> bytes:
        """`read`, but of a part that is known to be zero only the first entry."""
        if self.head is not None:
            used = -(-len(self.head) // ENTRY_BYTES) - (begin - self.first)
            count = min(count, max(used, 0) + 1)
        return self.read(begin, count)

    def entry(self, number: int) -> Entry:
        """The entry of a queue offset from `first` to before `limit`."""
        position = number * ENTRY_BYTES
        if self.head is not None:
            inside = position - self.bases[0]
            if inside + ENTRY_BYTES <= len(self.head):
                return entry_in(self.head, inside)
            return entry_in(self.head[inside:].ljust(ENTRY_BYTES, b"\0"), 0)
        at = self._block[0]
        if not at <= position < at + len(self._block[1]) or at < 0:
            inside = position % self.file_bytes
            at = position - inside % BLOCK_BYTES
            self._block = at, self.read(at // ENTRY_BYTES, BLOCK_BYTES // ENTRY_BYTES)
        return entry_in(self._block[1], position - at)

    def below(self, physical_offset: int) -> int:
        """The queue offset behind the last entry that points below `physical_offset`: entries ascend, and a hole entry
        counts like the entry before it."""
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
        """The last queue offset below `number` whose entry is not a hole; -1 if there is none."""
        while number > self.first:
            begin = max(
                self.first,
                number - MANY,
                (number - 1) * ENTRY_BYTES // self.file_bytes * self.file_bytes // ENTRY_BYTES,
            )
            if self.read(begin, number - begin) != HOLE_BYTES * (number - begin):
                # All of them may be hole entries nevertheless: a hole entry with a damaged tags code still is one.
                for at in range(number - 1, begin - 1, -1):
                    if not self.entry(at).hole:
                        return at
            number = begin
        return -1

    def first_message(self, physical_offset: int, end: int) -> int:
        """The first queue offset below `end` whose entry points at or past `physical_offset`; `end` if there is none
        (ConsumeQueue.correctMinOffset)."""
        number = self.first
        if number >= end:
            return end
        if self.entry(number).hole or self.entry(number).physical_offset < physical_offset:
            number = min(self.below(physical_offset), end)
        return self.next_message(number, end)

    def next_message(self, number: int, end: int) -> int:
        """The first queue offset of [number, end) whose entry is not a hole; `end` if there is none."""
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
        """Whether any byte at or behind a queue offset is not zero."""
        if self.head is not None:
            return self.bases[0] + len(self.head) > number * ENTRY_BYTES
        for base in self.bases:
            begin = max(number * ENTRY_BYTES - base, 0)
            if begin >= self.file_bytes:
                continue
            with files.opened(self.path(base)) as fd:
                for data, hole in files.data_ranges(fd, begin, self.file_bytes, self.path(base)):
                    piece = files.pread_full(fd, data, hole - data, self.path(base))
                    if log_walk.leading_zeros(piece) < len(piece):
                        return True
        return False


def list_queues(
    root: Path, configured_bytes: int, warnings: list[str], *, short: Callable[[str, int], bool] | None = None
) -> tuple[dict[tuple[str, int], QueueReader], int]:
    """Every consume queue on disk, and the length of their files.

    Files of another length than most, and files behind a missing one, are strays: the log determines their content.
    `short` names the queues that are known (after a clean close) to have only their first file: their folders are not
    listed.
    """
    found: dict[tuple[str, int], Listed] = {}
    folder = root / DIRECTORY
    for topic in _folders(folder):
        if not is_topic(topic):
            warnings.append(f"{folder / topic} is not a consume queue: a topic cannot have that name")
            continue
        path = folder / topic
        with files.opened(path, os.O_RDONLY | os.O_DIRECTORY) as parent, files.translated(path):
            for name in _folders(path):
                if not name.isdecimal() or str(int(name)) != name or int(name) >= 1 << 31:
                    warnings.append(
                        f"{folder / topic / name} is not a consume queue: the name is not a queue id"
                    )
                    continue
                listed = None
                if short is not None and short(topic, int(name)):
                    listed = _first_file(parent, name, configured_bytes)
                found[topic, int(name)] = listed or _listed(parent, path, name)
    lengths = Counter(length for listed in found.values() for _, length in listed[0])
    file_bytes = _file_bytes(lengths, configured_bytes)
    if file_bytes != configured_bytes:
        warnings.append(
            f"consume queue files have {file_bytes} bytes, the configuration says {configured_bytes}"
        )
    return {
        (topic, queue_id): _reader(topic, queue_id, folder, listed, file_bytes)
        for (topic, queue_id), listed in found.items()
    }, file_bytes


def open_queue(root: Path, topic: str, queue_id: int, file_bytes: int) -> QueueReader | None:
    """One consume queue whose files have `file_bytes`; None without a file."""
    path = root / DIRECTORY / topic
    if str(queue_id) not in _folders(path):
        return None
    with files.opened(path, os.O_RDONLY | os.O_DIRECTORY) as parent, files.translated(path / str(queue_id)):
        listed = _listed(parent, path, str(queue_id))
    return _reader(topic, queue_id, root / DIRECTORY, listed, file_bytes) if listed[0] else None


def _folders(path: Path) -> list[str]:
    return [entry.name for entry in files.entries(path) if entry.is_dir(follow_symlinks=False)]


def _listed(parent: int, path: Path, queue: str) -> Listed:
    """The files in a queue's folder, and the beginning of the file if there is one and nothing stands behind.
    `parent` is open on `path`, the folder of the topic: few system calls a queue, and no link is followed. Raises
    OSError."""
    with folders.open_folder_in(parent, queue) as folder:
        bases = [(base, name) for name in os.listdir(folder) if (base := base_of_name(name)) is not None]
        bases.sort()
        found = []
        for base, name in bases:
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:  # the cleaner has removed it
                continue
            if stat.S_ISLNK(status.st_mode):
                raise files.link_refused(path / queue / name)
            found.append((base, status.st_size if stat.S_ISREG(status.st_mode) else -1))
        if len(found) != 1 or found[0][1] < 0:
            return found, None
        name = file_name(found[0][0])
        try:
            with folders.open_file_in(folder, name) as fd:
                return found, _head(fd, found[0][1])
        except FileNotFoundError:  # the cleaner has removed it
            return [], None
        except OSError as error:
            with files.translated(path / queue / name):
                raise error


def _first_file(parent: int, queue: str, length: int) -> Listed | None:
    """The first file of a queue, without a listing of its folder; None if the file is not in order."""
    try:
        with folders.open_file_in(parent, f"{queue}/{FIRST_NAME}") as fd:
            status = os.fstat(fd)
            if status.st_size != length or not stat.S_ISREG(status.st_mode):
                return None
            head = _head(fd, length)
            return None if head is None else ([(0, length)], head)
    except OSError:
        return None


def _head(fd: int, length: int) -> bytes | None:
    """The begin of a file, up to its last byte that is not zero; None if there is more behind the first block."""
    data = os.pread(fd, FIRST_BYTES, 0)
    if len(data) < min(FIRST_BYTES, length):
        return None
    used = len(data) - log_walk.trailing_zeros(data) if data else 0
    if len(data) < length:
        if used == len(data):
            return None
        try:
            os.lseek(fd, len(data), os.SEEK_DATA)
            return None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
    return data[:used]


def _file_bytes(lengths: Counter[int], configured: int) -> int:
    """The length of most files; the configured one if no file has a possible length."""
    possible = {
        length: count for length, count in lengths.items() if length > 0 and length % ENTRY_BYTES == 0
    }
    if not possible:
        return configured
    return max(possible, key=lambda length: (possible[length], length == configured, length))


def _reader(topic: str, queue_id: int, folder: Path, listed: Listed, file_bytes: int) -> QueueReader:
    bases: list[int] = []
    strays: list[int] = []
    for base, length in listed[0]:
        follows = not bases or base == bases[-1] + file_bytes
        if length == file_bytes and base % file_bytes == 0 and follows:
            bases.append(base)
        else:
            strays.append(base)
    head = listed[1] if bases else None
    reader = QueueReader(
        topic, queue_id, folder, file_bytes, FIRST_ONLY if bases == [0] else tuple(bases), (), head
    )
    if strays:
        reader.strays = tuple(reader.path(base) for base in strays)
    return reader
