"""The state of a log at one moment, for readers that work beside the store: in other processes, or later, on ranges of
it.

The log below the published end never changes, except that the cleaner removes whole segments. So a reader needs no
attachment: it gets the names of the segments, the begins of records, and the holes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import (
    WHOLE_MAX,
    any_text,
    instance,
    listed,
    whole,
    yes_or_no,
)
from cystore._native.record.message import Message
from cystore.config import INT_MAX
from cystore.derived.files.consume_queue import ConsumeQueue, ConsumeQueues
from cystore.engine.files.segments import file_name
from cystore.engine.inspect.stats import QueueRange
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import OffsetError, StoreConfigError, StoreError

PIECE_BYTES = 128 * 1024 * 1024
ALIGN_QUEUES = 16  # the number of queues, the longest ones, that tell where records begin


@dataclass(frozen=True)
class LogRange:
    """Records that begin in [begin, end) of one segment: `path` is the segment's, `base` its first byte's physical
    offset, `file_bytes` its nominal length. Both ends are record boundaries. `holes` are known to be damaged."""

    store: str
    path: str
    base: int
    file_bytes: int
    begin: int
    end: int
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class LogRun:
    """Ranges of equally long segments that follow each other. Names very many of them in few bytes. `folder` is the
    folder of the segments."""

    store: str
    folder: str
    file_bytes: int
    begin: int
    end: int
    holes: tuple[tuple[int, int], ...] = ()

    def ranges(self) -> Iterator[LogRange]:
        """One for each segment."""
        begin = self.begin
        while begin < self.end:
            base = begin - begin % self.file_bytes
            end = min(self.end, base + self.file_bytes)
            path = f"{self.folder}/{file_name(base)}"
            holes = tuple(hole for hole in self.holes if hole[0] < end and hole[1] > begin)
            yield LogRange(self.store, path, base, self.file_bytes, begin, end, holes)
            begin = end


def runs_of(ranges: Iterable[LogRange]) -> tuple[LogRun, ...]:
    """The ranges as runs, each as long as possible."""
    runs: list[LogRun] = []
    for part in ranges:
        folder = part.path.rpartition("/")[0]
        last = runs[-1] if runs else None
        if last is not None and (last.store, last.folder, last.file_bytes, last.end) == (
            part.store,
            folder,
            part.file_bytes,
            part.begin,
        ):
            holes = last.holes + tuple(hole for hole in part.holes if hole not in last.holes)
            runs[-1] = replace(last, end=part.end, holes=holes)
        else:
            runs.append(LogRun(part.store, folder, part.file_bytes, part.begin, part.end, part.holes))
    return tuple(runs)


class LogSnapshot:
    """Bounds of a log when this was made; the methods read the queues, so the store must be open."""

    def __init__(
        self,
        root: Path,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        *,
        live: bool,
        store_id: str,
    ) -> None:
        self.path = root
        self.store_id = store_id  # of the manifest, empty without one
        self.live = live  # True: others may append; False: the log does not grow until a process attaches
        self.dispatched = control.dispatched
        self.flushed = control.flushed
        self.end = control.wrote
        self.minimum = min(control.min_physical_offset, self.end)
        self.file_bytes = commit_log.file_bytes
        self.holes = tuple(commit_log.damaged_ranges.ranges())
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self._folder = str(commit_log.files.directory)
        self._slots = control.queue_count
        # Here, and not in a cache of the class, which would keep each snapshot and so its store's mappings for ever.
        self._first_timestamps: dict[int, int | None] = {}

    # ---------------------------------------------------------------------------------------- queues

    @functools.cached_property
    def queue_ranges(self) -> dict[tuple[str, int], QueueRange]:
        """The queue offsets of each (topic, queue id), dispatched or not."""
        found = {}
        for slot in range(self._slots):
            topic, queue_id, following, _, minimum = self._control.queue(slot)
            found[topic, queue_id] = QueueRange(minimum, following)
        return dict(sorted(found.items()))

    def place(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """The physical offset of a queue's first message at or behind a queue offset; the dispatched position if there
        is none."""
        queue = self._queue(topic, queue_id)
        queue_offset = whole("queue_offset", queue_offset, -WHOLE_MAX)
        if queue is None:
            return self.dispatched
        return _place(queue, max(queue_offset, queue.min_offset), self.dispatched)

    def queue_offset_at(self, topic: str, queue_id: int, position: int) -> int:
        """The queue's first offset whose message is at or behind a physical offset."""
        queue, position = self._queue(topic, queue_id), _position("position", position)
        return 0 if queue is None else queue.offset_at(position)

    def last_message(self, topic: str, queue_id: int, end: int) -> Message | None:
        """A queue's last dispatched message below a physical offset; None if there is none. Raises StoreError if it
        cannot be read."""
        queue, end = self._queue(topic, queue_id), _position("end", end)
        if queue is None:
            return None
        at = queue.previous_message(queue.min_offset, queue.offset_at(end))
        entry = None if at is None else queue.entry(at)
        return None if entry is None else self._commit_log.read(entry.physical_offset)

    # ------------------------------------------------------------------------------------ boundaries

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.find(any_text("topic", topic), whole("queue_id", queue_id, 0, INT_MAX))

    @functools.cached_property
    def _longest(self) -> list[ConsumeQueue]:
        ranges = self.queue_ranges
        longest = sorted(ranges, key=lambda name: ranges[name].min_offset - ranges[name].max_offset)
        found = (self._queues.find(*name) for name in longest[:ALIGN_QUEUES])
        return [queue for queue in found if queue is not None]

    def boundary(self, position: int) -> int:
        """A record's begin (or the end of the log or a segment) at or behind `position`, close to it if queues have
        entries. Reads only that record of the log."""
        position = _position("position", position)
        if position <= self.minimum:
            return self.minimum
        base = self.base_of(position)
        if position == base:
            return min(position, self.end)
        following = min(base + self.file_bytes, self.end)
        if position >= following:
            return following
        for queue in self._longest:
            place = _place(queue, queue.offset_at(position), self.dispatched)
            if position <= place < following and self._begins_record(place):
                return place
        return following

    def base_of(self, position: int) -> int:
        """The base of the segment that contains a physical offset."""
        position = _position("position", position)
        return position - position % self.file_bytes

    def record(self, position: int) -> Message:
        """The record at a physical offset. Raises OffsetError if none begins there, CorruptRecordError if it is
        damaged."""
        return self._commit_log.read(position)

    def _begins_record(self, position: int) -> bool:
        """Whether a valid record begins at a position: a wrong queue entry must not cut a record in two."""
        try:
            return self._commit_log.read(position).physical_offset == position
        except StoreError:
            return False

    # ---------------------------------------------------------------------------------------- ranges

    def segments(self, begin: int, end: int) -> Iterator[LogRange]:
        """The part of each segment that lies in [begin, end), which are boundaries."""
        begin, end = _position("begin", begin), min(_position("end", end), self.end)
        for base in range(self.base_of(begin), end, self.file_bytes):
            first, behind = max(begin, base), min(end, base + self.file_bytes)
            if first < behind:
                yield self.part(first, behind)

    def part(self, begin: int, end: int) -> LogRange:
        """A range inside one segment."""
        begin, end = _position("begin", begin), _position("end", end)
        base = self.base_of(begin)
        holes = tuple(hole for hole in self.holes if hole[0] < end and hole[1] > begin)
        path = f"{self._folder}/{file_name(base)}"
        if self._commit_log.folders is not None:
            path = str(self._commit_log.files.path(base))
        return LogRange(str(self.path), path, base, self.file_bytes, begin, end, holes)

    def pieces(
        self, begin: int, end: int, piece_bytes: int = PIECE_BYTES, *, at_most: bool = False
    ) -> Iterator[LogRange]:
        """[begin, end) cut into equal parts of about `piece_bytes` at least (or `at_most`), each beginning with a
        record."""
        piece_bytes = whole("piece_bytes", piece_bytes, 1)
        at_most = yes_or_no("at_most", at_most)
        for segment in self.segments(begin, end):
            size_bytes = segment.size_bytes
            count = -(-size_bytes // piece_bytes) if at_most else max(1, size_bytes // piece_bytes)
            at = segment.begin
            for number in range(1, count + 1):
                target = segment.begin + size_bytes * number // count
                cut = segment.end if number == count else min(self.boundary(target), segment.end)
                if cut > at:
                    yield self.part(at, cut)
                    at = cut

    def begins_after(self, ranges: Iterable[LogRange], end_ms: int) -> Iterator[LogRange]:
        """The ranges without the segments whose first record is not older than `end_ms`.

        Only where we wrote the log: its store timestamps do not go back."""
        end_ms = whole("end_ms", end_ms, -WHOLE_MAX)
        for part in _ranges(ranges):
            first = self._first_timestamp(part.base)
            if first is None or first < end_ms:
                yield part

    def ends_before(self, ranges: Iterable[LogRange], begin_ms: int) -> Iterator[LogRange]:
        """The ranges without each segment whose next segment begins before `begin_ms`."""
        begin_ms = whole("begin_ms", begin_ms, -WHOLE_MAX)
        for part in _ranges(ranges):
            following = part.base + part.file_bytes
            first = self._first_timestamp(following) if following < self.end else None
            if first is None or first >= begin_ms:
                yield part

    def _first_timestamp(self, base: int) -> int | None:
        """Store timestamp of a segment's first record; None if it says nothing about the records around it."""
        if base not in self._first_timestamps:
            self._first_timestamps[base] = self._read_first_timestamp(base)
        return self._first_timestamps[base]

    def _read_first_timestamp(self, base: int) -> int | None:
        try:
            first = self._commit_log.read(base) if base >= self.minimum else None
        except StoreError:
            return None
        return first.store_timestamp_ms if first is not None and first.record_format == "cystore" else None


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


Part = TypeVar("Part", bound=_Sized)


def packed(ranges: Iterable[Part], pack_bytes: int, *, at_most: bool = False) -> list[tuple[Part, ...]]:
    """Ranges, packed in their order until each pack has at least `pack_bytes`; or at most `at_most` ranges, but at
    least one."""
    packs: list[tuple[Part, ...]] = []
    pack: list[Part] = []
    size = 0
    for part in ranges:
        if pack and (size + part.size_bytes > pack_bytes if at_most else size >= pack_bytes):
            packs.append(tuple(pack))
            pack, size = [], 0
        pack.append(part)
        size += part.size_bytes
    if pack:
        packs.append(tuple(pack))
    return packs


def packed_evenly(ranges: Iterable[Part], packs: int) -> list[tuple[Part, ...]]:
    """Ranges, packed in their order into this number of packs (or fewer, if there are fewer ranges), of similar
    sizes."""
    parts = list(ranges)
    total, before = sum(part.size_bytes for part in parts), 0
    found: dict[int, list[Part]] = {}
    for part in parts:
        middle = before + part.size_bytes / 2
        found.setdefault(min(int(middle * packs / max(total, 1)), packs - 1), []).append(part)
        before += part.size_bytes
    return [tuple(pack) for pack in found.values()]


def _position(field: str, value: object) -> int:
    return whole(field, value, error=OffsetError)


def _ranges(ranges: Iterable[LogRange]) -> Iterator[LogRange]:
    for part in listed("ranges", ranges, StoreConfigError):
        yield instance("ranges", part, LogRange, StoreConfigError)


def _place(queue: ConsumeQueue, queue_offset: int, otherwise: int) -> int:
    at = queue.next_message(queue_offset, queue.max_offset)
    entry = None if at is None else queue.entry(at)
    return otherwise if entry is None else entry.physical_offset
