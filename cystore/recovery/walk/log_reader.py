"""The commit log as recovery reads it: with pread, piece by piece, never mapped. A bad sector is an error here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from cystore._native.record import record
from cystore._native.record.properties import light_places
from cystore._native.scan import log_walk
from cystore._native.system import log_files
from cystore._native.system.descriptor import Descriptor
from cystore.engine.files.log_folders import LogFolders
from cystore.engine.files.segments import OURS, base_of_name, file_name
from cystore.engine.log.commit_log import DIRECTORY
from cystore.errors import StoreFormatError
from cystore.layout import BLANK_SIZE_MIN, CONSTANTS, TOTAL_SIZE, field_of
from cystore.recovery.walk.findings import DirtyRange, LaterFile
from cystore.system import files, folders
from cystore.system.ranges import file_ranges

PIECE_BYTES = 512 << 10  # read at once: the walk finds these bytes still in the processor's cache
GONE = -1  # a status beyond those of the kernel: there is no file at the position
PAGE_BYTES = 4096
SMALL_RECORD_BYTES = 4096
PHYSICAL_OFFSET = field_of("record", "physical_offset")
RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
BESIDE_BODY_MAX = (
    RECORD_SIZE_MIN
    + 2 * (CONSTANTS["HOST_V6_BYTES"][0] - CONSTANTS["HOST_V4_BYTES"][0])
    + CONSTANTS["TOPIC_BYTES_MAX"][0]
    + CONSTANTS["PROPERTIES_BYTES_MAX"][0]
)


def queue_places(fields: dict[str, Any]) -> list[tuple[tuple[str, int], int]]:
    """((topic, queue id), queue offset) of a record in its own queue and in its light queues; `fields` as from
    `LogReader.record`."""
    own = (fields["topic"].decode("ascii"), fields["queue_id"]), fields["queue_offset"]
    light = light_places(fields["properties"], fields["physical_offset"])
    return [own, *(((topic, 0), queue_offset) for topic, queue_offset in light)]


class LogReader:
    """The files of one commit log. `file_bytes` is the length of most of them; shorter ones read as if zeros followed.

    Raises StoreFormatError for an invalid name, for a file that is longer than the others, and for a name that is not a
    multiple of the length.
    """

    def __init__(self, root: Path, configured_bytes: int, folder: str = DIRECTORY) -> None:
        self.directory = root / folder
        self._places: dict[int, Path] = {}  # the folder of each file, if the log has several
        several = LogFolders.of(root) if folder == DIRECTORY else None
        if several is None:
            self.lengths = self._list()
        else:
            self.lengths, self._places = several.sizes()
        self.bases = sorted(self.lengths)
        self.file_bytes = self._file_bytes(configured_bytes)
        self._file: Descriptor | None = None
        self._folders: dict[Path, Descriptor] = {}  # opened
        self._file_base = -1
        for base, length in self.lengths.items():
            if length > self.file_bytes:
                raise StoreFormatError(
                    f"the file has {length} bytes, the others have {self.file_bytes}", path=self.path(base)
                )
            if base % self.file_bytes:
                raise StoreFormatError(
                    f"the name is not a multiple of the file length {self.file_bytes}", path=self.path(base)
                )

    def _list(self) -> dict[int, int]:
        """{base: length} of every file."""
        try:
            with folders.open_folder(self.directory) as folder:
                found = log_files.list_files(folder, OURS[0].encode())
        except OSError:
            found = None
        return self._list_one_by_one() if found is None else found

    def _list_one_by_one(self) -> dict[int, int]:
        """The same with an error that names the entry that is not a log file."""
        found = {}
        with files.translated(self.directory):
            for entry in files.entries(self.directory, sizes=True):
                if entry.name in OURS:
                    continue
                base = base_of_name(entry.name)
                if base is None or not entry.is_file(follow_symlinks=False):
                    raise StoreFormatError(
                        "not a valid name of a commit log file; move it away", path=entry.path
                    )
                size = files.size_of(entry)
                if size is not None:
                    found[base] = size
        return found

    def _file_bytes(self, configured: int) -> int:
        """The configured length if a file has it; otherwise the most frequent length, the longest of those. A length
        that is not in whole pages cannot be a setting: then files of the configured length were shortened."""
        lengths = list(self.lengths.values())
        if not lengths or configured in lengths:
            return configured
        chosen = max(lengths, key=lambda length: (lengths.count(length), length))
        if (
            (chosen % PAGE_BYTES or chosen == 0)
            and chosen < configured
            and not any(base % configured for base in self.lengths)
        ):
            return configured
        if chosen <= 0:
            raise StoreFormatError("the commit log files are empty", path=self.directory)
        return chosen

    @property
    def begin(self) -> int:
        """The log's minimum offset."""
        return self.bases[0] if self.bases else 0

    @property
    def end(self) -> int:
        """The log position behind the last file."""
        return self.bases[-1] + self.file_bytes if self.bases else 0

    @property
    def short(self) -> tuple[tuple[int, int], ...]:
        """(base, length) of the files that are too short."""
        return tuple(
            sorted((base, length) for base, length in self.lengths.items() if length < self.file_bytes)
        )

    def path(self, base: int) -> Path:
        return self._place(base) / file_name(base)

    def _place(self, base: int) -> Path:
        return self._places.get(base, self.directory)

    def base_of(self, offset: int) -> int:
        return offset - offset % self.file_bytes

    def has(self, base: int) -> bool:
        return base in self.lengths

    def close(self) -> None:
        self._file, self._folders = None, {}
        self._file_base = -1

    def _open(self, base: int) -> int:
        """The file that begins at `base`, looked up in the open folder, because a log may have ten thousand. Raises
        OSError."""
        if self._file is None or self._file_base != base:
            self._file, self._file_base = None, -1
            self._file = folders.open_file_in(self._opened_folder(base), file_name(base))
            self._file_base = base
        return self._file.fd

    def _opened_folder(self, base: int) -> int:
        place = self._place(base)
        if place not in self._folders:
            self._folders[place] = folders.open_folder(place)
        return self._folders[place].fd

    @cached_property
    def _runs(self) -> tuple[list[int], list[int]]:
        """Begins and ends of the runs of files: in a run they follow each other, all in one folder."""
        begins: list[int] = []
        ends: list[int] = []
        places, end, place = self._places, -1, None
        for base in self.bases:
            if base != end or (places and places.get(base) != place):
                begins.append(base)
                ends.append(base)
                place = places.get(base)
            end = ends[-1] = base + self.file_bytes
        return begins, ends

    def read_files_into(self, base: int, buffer: bytearray) -> int:
        """Fills `buffer` with whole consecutive files from `base` on; returns the number of bytes. 0 if the first one
        has to be read by itself, for its error."""
        begins, ends = self._runs
        at = bisect_right(begins, base) - 1
        count = min(max(ends[at] - base, 0) if at >= 0 else 0, len(buffer)) // self.file_bytes
        try:
            folder = self._opened_folder(base)
        except OSError:
            return 0
        return log_files.read_files(folder, base, self.file_bytes, count, buffer) * self.file_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` from physical offset `offset`; all of it lies in one file. Raises StoreIOError."""
        base = self.base_of(offset)
        try:
            fd = self._open(base)
        except OSError as error:
            with files.translated(self.path(base)):
                raise error
        done = file_ranges.pread_into(fd, offset - base, buffer, self.path(base))
        buffer[done:] = bytes(len(buffer) - done)

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`, or as many as the file has behind it."""
        buffer = bytearray(max(min(count, self.base_of(offset) + self.file_bytes - offset), 0))
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def record(self, offset: int) -> dict[str, Any] | None:
        """The fields of the valid record at `offset`; None if there is none."""
        if not self.has(self.base_of(offset)):
            return None
        room = self.base_of(offset) + self.file_bytes - offset
        data = self.read(offset, SMALL_RECORD_BYTES)
        size = TOTAL_SIZE.read(data) if len(data) == SMALL_RECORD_BYTES else 0
        if SMALL_RECORD_BYTES < size <= room and PHYSICAL_OFFSET.read(data) == offset:
            data = self.read(offset, size)
        status, fields = record.parse(data)
        return fields if status == "ok" and fields["physical_offset"] == offset else None

    def blank_fills(self, offset: int) -> bool:
        """Whether a blank stands at `offset` and reaches to the end of its file."""
        if not self.has(self.base_of(offset)):
            return False
        status, fields = record.parse(self.read(offset, BLANK_SIZE_MIN))
        return (
            status == "blank" and offset + int(fields["total_size"]) == self.base_of(offset) + self.file_bytes
        )

    def records(self, offset: int) -> Iterator[dict[str, Any]]:
        """The valid records from `offset` on, up to the first place without one."""
        while True:
            found = self.record(offset)
            if found is not None:
                yield found
                offset += found["total_size"]
            elif self.blank_fills(offset):
                offset = self.base_of(offset) + self.file_bytes
            else:
                return

    def data_ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts of [begin, end) of one file that may have content, as physical offsets."""
        base = self.base_of(begin)
        with files.translated(self.path(base)):
            fd = self._open(base)
        inside = files.data_ranges(fd, begin - base, min(end - base, self.lengths[base]), self.path(base))
        return [(base + first, base + last) for first, last in inside]

    def nonzero(self, begin: int, end: int) -> DirtyRange | None:
        """The range from the first nonzero byte of [begin, end) of one file to behind the last one."""
        first = last = -1
        for data, hole in self.data_ranges(begin, end):
            for at in range(data, hole, PIECE_BYTES):
                piece = self.read(at, min(PIECE_BYTES, hole - at))
                zeros = log_walk.leading_zeros(piece)
                if zeros == len(piece):
                    continue
                if first < 0:
                    first = at + zeros
                last = at + len(piece) - log_walk.trailing_zeros(piece)
        return DirtyRange(first, last) if first >= 0 else None

    def later_files(self, end: int) -> tuple[LaterFile, ...]:
        """The files that begin at or behind `end`, except the one that contains `end`."""
        behind = [base for base in self.bases if base >= end and base != self.base_of(end)]
        return tuple(LaterFile(base, self.nonzero(base, base + self.file_bytes) is None) for base in behind)


class Walk:
    """A scanner that gets the log in pieces. A piece holds many short files."""

    def __init__(
        self, reader: LogReader, scanner: log_walk.LogWalker, progress: Callable[[int], None] | None = None
    ) -> None:
        self.reader, self.scanner = reader, scanner
        self._progress = progress
        self._file_bytes = reader.file_bytes
        self._several = PIECE_BYTES // reader.file_bytes > 1
        self._buffer = bytearray(PIECE_BYTES if self._several else min(PIECE_BYTES, reader.file_bytes))
        self._begin = self._end = 0
        self._whole_files = False  # the buffer holds whole files

    def _fill(self, position: int, file_end: int, needed: int) -> None:
        if self._progress is not None:
            self._progress(position)
        if self._several:
            base = file_end - self._file_bytes
            count = self.reader.read_files_into(base, self._buffer)
            if count:
                self._begin, self._end, self._whole_files = base, base + count, True
                return
        count = min(max(PIECE_BYTES, needed), file_end - position)
        if count > len(self._buffer):
            self._buffer = bytearray(count)
        self.reader.read_into(position, memoryview(self._buffer)[:count])
        self._begin, self._end, self._whole_files = position, position + count, False

    def run(self) -> int:
        """Continues until the scanner stops for another reason than missing bytes or a blank that another file
        follows; GONE without a file."""
        scanner, reader, file_bytes, needed = self.scanner, self.reader, self._file_bytes, 0
        while True:
            position = scanner.position
            file_end = position - position % file_bytes + file_bytes
            scanner.move(position, file_end)
            if not self._begin <= position < self._end or position + needed > min(self._end, file_end):
                if not reader.has(file_end - file_bytes):
                    return GONE
                self._fill(position, file_end, needed)
            if self._whole_files:
                status = scanner.run_files(self._buffer, self._end - self._begin, self._begin, file_bytes)
            else:
                status = scanner.run(self._buffer, min(self._end, file_end) - self._begin, self._begin)
            if status == log_walk.MORE:
                needed = scanner.needed
            elif status == log_walk.BLANK and reader.has(
                following := scanner.position - scanner.position % file_bytes + file_bytes
            ):
                scanner.move(following, following + file_bytes)
                needed = 0
            else:
                return status


class Finder:
    """Searches for valid records behind damage."""

    def __init__(self, reader: LogReader, *, check_checksum: bool) -> None:
        self._reader = reader
        self._scanner = log_walk.LogWalker(check_checksum=check_checksum, follow_queues=False)

    def find(self, begin: int, end: int) -> tuple[int, tuple[bytes, int, int, int, int, int, int]] | None:
        """(place, `LogWalker.record`) of the first valid record that begins in [begin, end), in any file."""
        reader = self._reader
        for base in [base for base in reader.bases if base + reader.file_bytes > begin and base < end]:
            file_end = base + reader.file_bytes
            for data, hole in reader.data_ranges(max(begin, base), file_end):
                # A record's size begins with zeros, which may lie in a hole of the file before the data.
                found = self._find_in(max(data - 3, begin, base), min(hole, end), file_end)
                if found >= 0:
                    return found, self._scanner.record()
        return None

    def _find_in(self, position: int, until: int, file_end: int) -> int:
        scanner, needed = self._scanner, 0
        while position < until:
            piece = self._reader.read(position, max(PIECE_BYTES, needed))
            scanner.move(position, file_end)
            found = scanner.find(piece, len(piece), position)
            if found >= 0:
                return found if found < until else -1
            needed = scanner.needed
            if not needed and position + len(piece) == file_end:
                return -1
            position = scanner.position
        return -1
