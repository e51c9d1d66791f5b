"""The sealed segments of a store, read by URL: from a copy in an object store, or from a file system whose files must
not be mapped.

A segment is sealed when a later segment begins with a record: no process writes to it any more. The current segment
and the segments kept ready are left out. The reader only requests listings and ranges of files; it does not attach.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from cystore._native.record import record
from cystore._native.record.record import STATUS_NAMES
from cystore._native.scan import columns as kernel
from cystore._native.scan.columns import ColumnReader
from cystore._native.scan.log_walk import MORE, LogWalker
from cystore.columns.arrow import ReadSettings, damaged, new_reader, taken
from cystore.columns.object_store import ObjectStore, in_parallel
from cystore.derived.files.consume_queue import DIRECTORY as QUEUES
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.derived.reading.snapshot import LogRange
from cystore.engine.files.log_folders import FILE as LOG_FOLDERS
from cystore.engine.files.segments import OURS, base_of_name, file_name
from cystore.engine.inspect.stats import QueueRange
from cystore.engine.log.commit_log import DIRECTORY
from cystore.errors import OffsetError, StoreFormatError
from cystore.layout import (
    BLANK_SIZE_MIN,
    MAGIC,
    RECORD_MAGIC_BLANK,
    RECORD_MAGIC_CYSTORE,
    RECORD_MAGIC_ROCKETMQ,
    TOTAL_SIZE,
)
from cystore.recovery.walk.queue_reader import entry_in
from cystore.system.threads.thread_pool import ThreadPool

WINDOW_BYTES = 16 * 1024 * 1024
HEAD_BYTES = (
    4096  # this part of a segment contains its first store timestamp, unless its first record is longer
)
MAGICS = frozenset({RECORD_MAGIC_CYSTORE, RECORD_MAGIC_ROCKETMQ, RECORD_MAGIC_BLANK})
SHORT = STATUS_NAMES.index("short")


class SealedLog:
    """The listing of a store at a URL, with the names of LogSnapshot. `minimum` and `end` bound the sealed segments, so
    a plan made with it never changes.

    Raises StoreFormatError if there is no store, or if a segment's length differs from the others; OffsetError for a
    segment that is missing between two others, unless `fail_on_data_loss` is False.
    """

    def __init__(self, object_store: ObjectStore, url: str, *, fail_on_data_loss: bool = True) -> None:
        self.path, self.object_store = url, object_store
        self._folder = f"{url}/{DIRECTORY}"
        # Here, and not in caches of the class, which would keep each plan's object for ever.
        self._first_timestamps: dict[int, int | None] = {}
        self._queue_ranges: dict[tuple[str, int], QueueRange] = {}
        lengths = self._list()
        self._check_folders()
        if not lengths:
            object_store.check_folder(url)
            raise StoreFormatError(
                "there is no segment here: this is not the folder of a store", path=self._folder
            )
        self.file_bytes = Counter(sorted(lengths.values(), reverse=True)).most_common(1)[0][0]
        bases = sorted(lengths)
        self._check_names(bases)
        self.end = self._border(bases, lengths)
        self._bases = [base for base in bases if base < self.end]
        self.minimum = min(bases[0], self.end)
        for base in self._bases:
            if lengths[base] != self.file_bytes:
                raise StoreFormatError(
                    f"the segment has {lengths[base]} bytes, the others have {self.file_bytes}: copy it again",
                    path=self.url_of(base),
                )
        if fail_on_data_loss and len(self._bases) != (self.end - self.minimum) // self.file_bytes:
            missing = next(self.missing())
            raise OffsetError(
                "the segment is missing between others, so its records are lost; copy it, or read the rest "
                "with on_corruption skip or "
                "column (failOnDataLoss=false in Spark)",
                path=missing.path,
                offset=missing.begin,
            )

    def _check_folders(self) -> None:
        """Refuses a store whose log has several folders: a URL leads to its own one only."""
        url = f"{self.path}/config/{LOG_FOLDERS}"
        try:
            self.object_store.open_file(url).close()
        except FileNotFoundError:
            return
        raise StoreFormatError(
            "the log of this store has several folders, which a reader by URL does not find: read it by its path, or "
            "read a copy that `cystore snapshot` made",
            path=url,
        )

    def _list(self) -> dict[int, int]:
        found = {}
        for name, size in self.object_store.files(self._folder).items():
            if name in OURS:
                continue
            base = base_of_name(name)
            if base is None:
                raise StoreFormatError(
                    "not a valid name of a commit log file; move it away", path=f"{self._folder}/{name}"
                )
            found[base] = size
        return found

    def _check_names(self, bases: list[int]) -> None:
        for base in bases:
            if self.file_bytes <= 0 or base % self.file_bytes:
                raise StoreFormatError(
                    f"the name is not a multiple of the segments' length {self.file_bytes}",
                    path=self.url_of(base),
                )

    def _border(self, bases: list[int], lengths: dict[int, int]) -> int:
        """The base of the current segment: the last segment with a record. Segments after it are kept ready and are
        empty."""
        for base in reversed(bases):
            head = self._read(base, 0, min(BLANK_SIZE_MIN, lengths[base]))
            if len(head) == BLANK_SIZE_MIN and MAGIC.read(head) in MAGICS:
                return base
        return bases[0]

    def url_of(self, base: int) -> str:
        """The URL of the segment that begins at `base`."""
        return f"{self._folder}/{file_name(base)}"

    def _read(self, base: int, at: int, count: int) -> bytes:
        url = self.url_of(base)
        try:
            with self.object_store.open_file(url) as file:
                return self.object_store.read(file, url, at, count)
        except FileNotFoundError:
            _removed(url, base)

    # ------------------------------------------------------------------------------------------- ranges

    def missing(self) -> Iterator[LogRange]:
        """The segments that are missing between others, as ranges."""
        there = set(self._bases)
        for base in range(self.minimum, self.end, self.file_bytes):
            if base not in there:
                yield LogRange(
                    self.path, self.url_of(base), base, self.file_bytes, base, base + self.file_bytes
                )

    def segments(self, begin: int, end: int) -> Iterator[LogRange]:
        """The part of each segment in [begin, end); `begin` and `end` are record boundaries."""
        for base in self._bases:
            first, behind = max(begin, base), min(end, base + self.file_bytes)
            if first < behind:
                yield LogRange(self.path, self.url_of(base), base, self.file_bytes, first, behind)

    def ends_before(self, ranges: Iterable[LogRange], begin_ms: int) -> Iterator[LogRange]:
        """The ranges without segments that end before `begin_ms`: the segment after them begins before that time."""
        first = self._first_from(begin_ms, unknown=False)
        return (part for part in ranges if part.base + self.file_bytes >= first)

    def begins_after(self, ranges: Iterable[LogRange], end_ms: int) -> Iterator[LogRange]:
        """The ranges without segments whose first record is at `end_ms` or later."""
        last = self._first_from(end_ms, unknown=True)
        return (part for part in ranges if part.base < last)

    def _first_from(self, time_ms: int, *, unknown: bool) -> int:
        """The base of the first segment whose first record is not before a time. `unknown` tells whether a segment
        without a usable time counts as before. Our store timestamps ascend, so a binary search reads few segments."""
        low, high = 0, len(self._bases)
        while low < high:
            middle = (low + high) // 2
            first = self._first_timestamp(self._bases[middle])
            if unknown if first is None else first < time_ms:
                low = middle + 1
            else:
                high = middle
        return self._bases[low] if low < len(self._bases) else self.end

    def _first_timestamp(self, base: int) -> int | None:
        """The store timestamp of a segment's first record; None if the record is not valid or not ours."""
        if base not in self._first_timestamps:
            self._first_timestamps[base] = self._read_first_timestamp(base)
        return self._first_timestamps[base]

    def _read_first_timestamp(self, base: int) -> int | None:
        try:
            data = self._read(base, 0, min(HEAD_BYTES, self.file_bytes))
            size = TOTAL_SIZE.read(data) if len(data) >= BLANK_SIZE_MIN else 0
            if HEAD_BYTES < size <= self.file_bytes:
                data = self._read(base, 0, size)
        except OffsetError:
            return None  # the task that reads it reports the error
        status, fields = record.parse(data)
        ours = status == "ok" and fields["magic"] == RECORD_MAGIC_CYSTORE
        return int(fields["store_timestamp"]) if ours else None

    # ------------------------------------------------------------------------------------------- queues

    @functools.cached_property
    def queue_names(self) -> list[tuple[str, int]]:
        """The queues that have a consume queue's folder. Raises StoreFormatError if the folders were not copied."""
        folder = f"{self.path}/{QUEUES}"
        topics = self.object_store.folders(folder)
        if not topics and self._bases:
            raise StoreFormatError(
                "there are no consume queues here, so the queues are unknown; copy the folder consumequeue "
                "too, or choose with topic, "
                "startingTimestamp and endingTimestamp",
                path=folder,
            )
        ids = in_parallel(lambda topic: self.object_store.folders(f"{folder}/{topic}"), topics)
        return sorted(
            (topic, int(name))
            for topic, names in zip(topics, ids, strict=True)
            for name in names
            if name.isascii() and name.isdecimal()
        )

    @property
    def queue_ranges(self) -> Mapping[tuple[str, int], QueueRange]:
        """The queue offsets of each queue in the sealed segments; each is read from the queue's files when it is first
        needed."""
        return _QueueRanges(self)

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """The offsets of one queue."""
        queue = topic, queue_id
        if queue not in self._queue_ranges:
            self._queue_ranges[queue] = self._read_queue_range(topic, queue_id)
        return self._queue_ranges[queue]

    def _read_queue_range(self, topic: str, queue_id: int) -> QueueRange:
        folder = f"{self.path}/{QUEUES}/{topic}/{queue_id}"
        found = {base_of_name(name): size for name, size in self.object_store.files(folder).items()}
        lengths = {base: size for base, size in found.items() if base is not None}
        return QueueRange(
            *(self._entry_from(folder, lengths, position) for position in (self.minimum, self.end))
        )

    def _entry_from(self, folder: str, lengths: dict[int, int], position: int) -> int:
        """The queue offset of the first entry that points to `position` or later, or was never written."""
        bases = sorted(lengths)
        if not bases:
            return 0
        low, high = 0, len(bases) - 1  # the wanted file is the last file that begins with an earlier entry
        while low < high:
            middle = (low + high + 1) // 2
            if self._is_below(self._file(folder, bases[middle], ENTRY_BYTES), 0, position):
                low = middle
            else:
                high = middle - 1
        base = bases[low]
        data = self._file(folder, base, lengths[base] - lengths[base] % ENTRY_BYTES)
        first, behind = 0, len(data) // ENTRY_BYTES
        while first < behind:
            middle = (first + behind) // 2
            if self._is_below(data, middle, position):
                first = middle + 1
            else:
                behind = middle
        return base // ENTRY_BYTES + first

    def _is_below(self, data: bytes, number: int, position: int) -> bool:
        """Whether an entry points below a position. If it is a hole, the next entry that is not a hole decides."""
        while (number + 1) * ENTRY_BYTES <= len(data):
            entry = entry_in(data, number * ENTRY_BYTES)
            if not entry.hole:
                return entry.written and entry.physical_offset < position
            number += 1
        return True

    def _file(self, folder: str, base: int, count: int) -> bytes:
        url = f"{folder}/{file_name(base)}"
        try:
            with self.object_store.open_file(url) as file:
                return self.object_store.read(file, url, 0, count)
        except FileNotFoundError:
            raise StoreFormatError(
                "the consume queue's file was removed while it was read", path=url
            ) from None


class _QueueRanges(Mapping[tuple[str, int], QueueRange]):
    def __init__(self, log: SealedLog) -> None:
        self._log = log

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._log.queue_names)

    def __len__(self) -> int:
        return len(self._log.queue_names)

    def __getitem__(self, queue: tuple[str, int]) -> QueueRange:
        if queue not in self._log.queue_names:
            raise KeyError(queue)
        return self._log.queue_range(*queue)


def _removed(url: str, base: int) -> NoReturn:
    raise OffsetError(
        "the segment was removed after the read was planned, so its records are lost; read again (in Spark, "
        "failOnDataLoss=false reads "
        "the rest)",
        path=url,
        offset=base,
    ) from None


# ------------------------------------------------------------------------------------------------------ read


def read_sealed(
    ranges: Iterable[LogRange],
    settings: ReadSettings,
    object_store: ObjectStore,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of ranges as `read_ranges` gives them; a range's path is a URL here.

    Holds at most about four windows of the log, or twice its largest record. Raises CorruptRecordError, OffsetError for
    a removed segment, StoreFormatError for a shortened segment, StoreIOError and StorePermissionError.
    """
    reader = new_reader(settings)
    store = None
    with ThreadPool(1, "cystore-read-ahead") as pool:
        for part in ranges:
            if part.store != store:
                yield from taken(reader, settings, store)
                store = part.store
            try:
                file = object_store.open_file(part.path)
            except FileNotFoundError:
                if settings.fail_on_data_loss:
                    _removed(part.path, part.base)
                continue
            with file:
                windows = _Windows(file, object_store, part, window_bytes, pool)
                try:
                    yield from _read_segment(reader, windows, settings)
                finally:
                    windows.close()
        yield from taken(reader, settings, store)


@dataclass
class _Windows:
    """A segment's bytes, a window at a time; a thread fetches the next window meanwhile. `data` begins at physical
    offset `first`."""

    file: pa.NativeFile
    object_store: ObjectStore
    part: LogRange
    window_bytes: int
    pool: ThreadPool
    data: bytes = b""
    first: int = 0
    ahead: Future[bytes] | None = None

    def __post_init__(self) -> None:
        self.first = self._fetched = self.part.begin
        self._fetch()

    @property
    def end(self) -> int:
        return self.first + len(self.data)

    def move(self, position: int, needed: int = 0) -> None:
        """Drops the bytes below `position` and adds windows: one, or as many as `needed` bytes from there require."""
        pieces = [self.data[position - self.first :]]
        have = len(pieces[0])
        until = min(max(needed, have + 1), self.part.end - position)
        while have < until and self.ahead is not None:
            pieces.append(self.ahead.result())
            have += len(pieces[-1])
            self._fetch()
        self.data, self.first = b"".join(pieces), position

    def _fetch(self) -> None:
        at, count = self._fetched, min(self.window_bytes, self.part.end - self._fetched)
        self.ahead = None
        if count:
            self._fetched += count
            self.ahead = self.pool.submit(
                self.object_store.read, self.file, self.part.path, at - self.part.base, count
            )

    def close(self) -> None:
        """Waits for pending reads, because the file is closed next; their results do not matter."""
        if self.ahead is not None and not self.ahead.cancel():
            self.ahead.exception()


def _read_segment(
    reader: ColumnReader, windows: _Windows, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    part = windows.part
    at, file_end = part.begin, part.base + part.file_bytes
    windows.move(at)
    while at < part.end:
        status = reader.run(windows.data, windows.first, at, windows.end, file_end)
        at = reader.position
        if status == kernel.FULL:
            yield from taken(reader, settings, part.store)
        elif status == kernel.BLANK:
            return
        elif status == kernel.LIMIT:
            windows.move(at)
        elif reader.reason == SHORT and (needed := _needed(windows, at, file_end)):
            windows.move(at, needed)
        else:
            reason = STATUS_NAMES[reader.reason]
            following = _next_record(windows, at, file_end)
            yield from damaged(reader, part, at, following, reason, settings)
            at = following


def _needed(windows: _Windows, at: int, file_end: int) -> int:
    """The length of the record at `at`, if the window cuts it; otherwise 0."""
    if windows.end == windows.part.end:
        return 0
    scanner = LogWalker(check_checksum=False, follow_queues=False)
    scanner.move(at, file_end)
    scanner.limit = file_end
    return scanner.needed if scanner.run(windows.data, len(windows.data), windows.first) == MORE else 0


def _next_record(windows: _Windows, position: int, file_end: int) -> int:
    """The begin of the next valid record after damage, or the range's end; the windows then reach it."""
    scanner, end = LogWalker(follow_queues=False), windows.part.end
    scanner.move(position, file_end)
    while scanner.position < end:
        found = scanner.find(windows.data, len(windows.data), windows.first)
        if found >= 0:
            return found
        if windows.end < end:
            windows.move(scanner.position, scanner.needed)
        elif scanner.needed:
            scanner.move(scanner.position + 1, file_end)  # no record reaches past the end
        else:
            break
    return end
