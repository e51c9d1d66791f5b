"""Searches a queue for a store timestamp (ConsumeQueue.getOffsetInQueueByTime). The kernel searches a sound queue."""

from __future__ import annotations

from cystore._native.lookup.time_search import BOUNDARIES, search_time
from cystore._native.memory.control import Control
from cystore._native.record.message import Message, message_at
from cystore._native.record.properties import queues_of
from cystore.derived.dispatch.heal import QueueHealer, is_queue_damage
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueue, ConsumeQueues
from cystore.derived.reading.request import QueueState
from cystore.derived.reading.tail import At, TailReader
from cystore.derived.reading.windows import SpareWindows
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, OffsetError

NEAREST, LOWER, UPPER = BOUNDARIES


class _UnsoundQueueError(Exception):
    """A file of a queue is gone or wrong, and this process cannot make it again."""


class TimeSearch:
    """Finds the message of a time in the queues of one store. A deleted or damaged queue file is made again first."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        tail: TailReader,
        healer: QueueHealer,
        windows: SpareWindows,
    ) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self._tail, self._healer, self._windows = tail, healer, windows

    def offset(
        self, name: bytes, state: QueueState, dispatched: int, timestamp_ms: int, boundary: str
    ) -> int:
        """See `MessageStore.offset_by_time`. `name` is the topic as stored; `dispatched` was read before `state`."""
        slot, minimum, maximum, following, log_minimum, wrote = state
        queue = self._queues.get(slot)
        # Where dispatch stands still, `get` gives dispatched messages, so the nearest is one of these.
        is_whole = maximum >= following or (boundary == NEAREST and not self._control.read_only)
        found = None
        if is_whole:
            found = self._in_sound_queue(name, state, queue.queue_id, timestamp_ms, boundary)
        if found is not None:
            return found
        split_ms = timestamp_ms + (boundary == UPPER)  # messages before the split are earlier than this
        try:
            low = self._first_from(queue, minimum, maximum, split_ms)
            if low < maximum or is_whole:
                later, earlier = self._at(queue, low, maximum, forward=True), self._at(queue, minimum, low)
                return _chosen(earlier, later, timestamp_ms, boundary, minimum, maximum)
        except _UnsoundQueueError:  # the log gives the same answer, slowly
            dispatched, maximum = log_minimum, minimum
        # All dispatched messages are earlier: a read-only handle looks at the undispatched ones.
        earlier, later = self._tail.around(
            self._commit_log.window(),
            (log_minimum, wrote, dispatched),
            (name, queue.queue_id),
            maximum,
            split_ms,
            self._stored_ms,
        )
        if earlier is None:
            earlier = self._at(queue, minimum, maximum)
        return _chosen(earlier, later, timestamp_ms, boundary, minimum, following)

    def _in_sound_queue(
        self, name: bytes, state: QueueState, queue_id: int, timestamp_ms: int, boundary: str
    ) -> int | None:
        """The answer if the search meets only sound messages, else None."""
        slot, minimum, maximum, _, log_minimum, wrote = state
        window = self._windows.take()
        found = search_time(
            window, log_minimum, wrote, self._queues.file_of, slot, name, queue_id, minimum, maximum, timestamp_ms,
            BOUNDARIES[boundary],
        )  # fmt: skip
        self._windows.give_back(window)
        return found

    def _first_from(self, queue: ConsumeQueue, low: int, high: int, timestamp_ms: int) -> int:
        """The offset at which a queue's messages of a time and later ones begin: the first of them is at or behind it,
        and none is before."""
        while low < high:
            middle = (low + high) // 2
            at = self._next(queue, middle, high)
            if at is None:
                high = middle
            elif (time := self._timestamp(queue, at)) is None or time < timestamp_ms:
                low = at + 1
            else:
                high = middle
        return low

    def _next(self, queue: ConsumeQueue, begin: int, end: int) -> int | None:
        """The first offset of [begin, end) that has a message outside of the log's holes. Raises _UnsoundQueueError."""
        while begin < end:
            self._make_up(queue, begin)
            upto = min(end, queue.next_file_offset(begin))
            at = queue.next_message(begin, upto)
            if at is not None and not self._in_hole(queue, at):
                return at
            begin = upto if at is None else at + 1
        return None

    def _previous(self, queue: ConsumeQueue, begin: int, end: int) -> int | None:
        """The last offset of [begin, end) that has a message outside of the log's holes. Raises _UnsoundQueueError."""
        while begin < end:
            self._make_up(queue, end - 1)
            file_begin = queue.next_file_offset(end - 1) - queue.files.file_bytes // ENTRY_BYTES
            first = max(begin, file_begin)
            at = queue.previous_message(first, end)
            if at is not None and not self._in_hole(queue, at):
                return at
            end = first if at is None else at
        return None

    def _make_up(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Heals a queue file that is gone or wrong. Raises _UnsoundQueueError in a process that may not write."""
        if queue.file_of(queue_offset) is not None:
            return
        if self._control.read_only:
            raise _UnsoundQueueError
        self._healer.heal(queue.slot, queue_offset)

    def _in_hole(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        holes = self._commit_log.damaged_ranges
        entry = queue.entry(queue_offset) if holes else None
        return entry is not None and holes.covering(entry.physical_offset) is not None

    def _at(self, queue: ConsumeQueue, begin: int, end: int, *, forward: bool = False) -> At | None:
        """The last message of [begin, end), or the first one. Raises _UnsoundQueueError."""
        offset = (self._next if forward else self._previous)(queue, begin, end)
        ms = None if offset is None else self._timestamp(queue, offset)
        return None if offset is None or ms is None else At(offset, ms)

    def _timestamp(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        """Store timestamp of a message, None when its record was removed meanwhile. Raises _UnsoundQueueError."""
        try:
            return self._entered_ms(queue, queue_offset)
        except CorruptRecordError as error:
            if not is_queue_damage(error):
                raise
            if self._control.read_only:
                raise _UnsoundQueueError from error
        self._healer.heal(queue.slot, queue_offset)
        return self._entered_ms(queue, queue_offset)

    def _entered_ms(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        """Store timestamp of the record that an entry points to. Raises CorruptRecordError if that is not the
        message's, as `get` does."""
        entry = queue.entry(queue_offset)
        if entry is None:
            return None
        try:
            record = self._record(entry.physical_offset, entry.size_bytes)
        except OffsetError as error:
            raise self._wrong_entry(queue, queue_offset, "outside the log") from error
        if record is None:
            return None
        if (record.physical_offset, record.size_bytes) != entry[:2] or (
            (queue.topic, queue.queue_id, queue_offset) not in queues_of(record)
        ):
            raise self._wrong_entry(queue, queue_offset, "to another record")
        return record.store_timestamp_ms

    def _wrong_entry(self, queue: ConsumeQueue, queue_offset: int, where: str) -> CorruptRecordError:
        reason = f"the consume queue entry of queue offset {queue_offset} points {where}"
        return CorruptRecordError(reason, path=queue.files.directory, offset=queue_offset * ENTRY_BYTES)

    def _stored_ms(self, physical_offset: int, size_bytes: int) -> int | None:
        """Store timestamp of a record, None when it was removed meanwhile."""
        record = self._record(physical_offset, size_bytes)
        return None if record is None else record.store_timestamp_ms

    def _record(self, physical_offset: int, size_bytes: int) -> Message | None:
        """The record at a log position, None when it was removed meanwhile. Raises OffsetError."""
        try:
            segment = self._commit_log.segment_for(physical_offset)
        except OffsetError:
            if size_bytes > 0 and 0 <= physical_offset < self._control.min_physical_offset:
                return None
            raise
        at = physical_offset - segment.base
        return message_at(segment, at, min(size_bytes, segment.length - at))


def _chosen(
    earlier: At | None, later: At | None, timestamp_ms: int, boundary: str, minimum: int, end: int
) -> int:
    """The answer, from the messages next to the split of a queue [minimum, end). For UPPER `earlier` may be of the very
    time, else `later` may be."""
    if boundary == LOWER:
        return end if later is None else later.queue_offset
    if boundary == UPPER or later is None:
        return minimum if earlier is None else earlier.queue_offset
    if earlier is None or later.ms - timestamp_ms < timestamp_ms - earlier.ms or later.ms == timestamp_ms:
        return later.queue_offset
    return earlier.queue_offset
