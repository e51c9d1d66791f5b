"""Delivery of delayed messages: what is due leaves SCHEDULE_TOPIC_XXXX for its own topic, once.

Source: ScheduleMessageService. Different here: any process may deliver, one batch at a time under the deliver lock; a delivered message
names its source, so a kill at any point delivers nothing twice; a message whose due time lies further away than its level waits, where
RocketMQ takes that for a clock that was set back and delivers early.

What a kill leaves: messages that are delivered and not counted, behind the position that the batch noted before its first append. Who
delivers next counts them first (delivered.py).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

from cystore import clock
from cystore._native import ext, store_clock
from cystore._native.appender import SCHEDULE_TOPIC, Appender
from cystore._native.control import Control
from cystore._native.delay import is_due_time
from cystore._native.exact import whole
from cystore._native.failpoint import failpoint
from cystore._native.mapping import MappedFile
from cystore._native.message import Message, PutResult, delay_level_of, due_message
from cystore.clock import monotonic_s, seconds
from cystore.config import StoreConfig
from cystore.derived.consume_queue import ConsumeQueue, ConsumeQueues, QueueEntry
from cystore.derived.reader import Reader
from cystore.engine.append_policy import AppendPolicy
from cystore.engine.commit_log import CommitLog
from cystore.engine.flush import Flusher
from cystore.engine.progress import Progress
from cystore.errors import (
    CorruptRecordError,
    MessageIllegalError,
    OffsetError,
    StoreConfigError,
    StoreError,
)
from cystore.layout import CONSTANTS
from cystore.services.delivered import SOURCE, DeliveryProgress, source_text

log = logging.getLogger("cystore")

BATCH_MESSAGES = 256
BATCH_BYTES = 1024 * 1024
RUN_ONCE_S = 1.0
BUSY_MS = 10
IDLE_MS = 100  # ScheduleMessageService.DELAY_FOR_A_WHILE
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]


class _RoomNeededError(StoreError):
    """The log needs something that is made under the housekeeping lock, which comes before the deliver lock."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__("the log needs room")
        self.make = make


class _Room:
    """The append policy of a thread that holds the deliver lock: what it may not make now it asks for."""

    def __init__(self, policy: AppendPolicy) -> None:
        self._policy = policy
        self.refused, self.overwritten = policy.refused, policy.overwritten
        self._segment: MappedFile | None = None

    def segment_at(self, position: int) -> MappedFile:
        """The segment, if it was made ready."""
        segment, self._segment = self._segment, None  # the appender keeps it
        if segment is None or not segment.base <= position < segment.end:
            raise _RoomNeededError(partial(self._prepare, position))
        return segment

    def _prepare(self, position: int) -> None:
        self._segment = self._policy.segment_at(position)

    def make_room(self, needed: int) -> NoReturn:
        """Asks for it."""
        raise _RoomNeededError(partial(self._policy.make_room, needed))

    def more_queues(self) -> NoReturn:
        """Asks for them."""
        raise _RoomNeededError(self._policy.more_queues)


class _Due(NamedTuple):
    """A message that is due; None in its place for one that cannot be delivered and is stepped over."""

    slot: int
    queue_offset: int
    message: Message | None


class Scheduler:
    """Delivers the delayed messages of one store; without an appender it only tells when they are due."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        progress: DeliveryProgress,
        reader: Reader,
        flusher: Flusher,
        appender: Appender | None,
        config: StoreConfig,
    ) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self._progress, self._reader, self._flusher, self._config = progress, reader, flusher, config
        self._appender = appender
        self._levels_ms = config.delay_levels_ms()
        # Of a queue's slot: the message that comes next, its due time as the queue has it, and checked against the record.
        self._waiting: dict[int, tuple[int, int | None, int]] = {}
        # Of a queue's slot: a message that a wrong clock stamped, and when it is due.
        self._stamped_wrong: dict[int, tuple[int, int]] = {}
        self._room = None if appender is None else _Room(appender.policy)

    # ------------------------------------------------------------------------------------------- delivering

    def run_once(self, budget: int | None = None) -> Progress:
        """Delivers what is due by now, at most `budget` messages; `done` counts them. While another one delivers: nothing."""
        return self._run(budget, monotonic_s() + RUN_ONCE_S, wait=False)

    def deliver(self, max_messages: int | None = None, timeout_s: float | None = None) -> int:
        """Delivers what was due when it was called; returns how many. Ends after about `timeout_s` (then some may be left; the wait
        for another one who delivers is counted in). Raises what `put` raises."""
        if max_messages is not None:
            max_messages = whole("max_messages", max_messages, 1, error=StoreConfigError)
        until_s = None if timeout_s is None else monotonic_s() + seconds(timeout_s, least=0)
        return self._run(max_messages, until_s, wait=True).done

    def _run(self, limit: int | None, until_s: float | None, *, wait: bool) -> Progress:
        control, done, now_ms = self._control, 0, clock.now_ms(self._control)
        if self._appender is None or not self._progress.slots():
            return Progress(0)
        self._reader.help_dispatch()
        while limit is None or done < limit:
            left_ms = -1 if until_s is None else max(int((until_s - monotonic_s()) * 1000), 0)
            with control.held_if_free("deliver", within_ms=left_ms if wait else 0) as turn:
                if not turn.held:
                    return Progress(done)
                if not self._progress.count(until_s):
                    return Progress(done, more=True)
                batch = self._due(
                    now_ms, BATCH_MESSAGES if limit is None else min(limit - done, BATCH_MESSAGES)
                )
                put, room = self._put(batch)
                self._progress.save_if_old(self._config.flush_delay_offset_interval_ms)
            if put and self._config.flush_disk_type == "sync":
                self._flusher.flush_to(put[-1].physical_offset + put[-1].size_bytes)
            done += len(put)
            if room is not None:
                room.make()
            elif not batch:
                return Progress(done)
            if until_s is not None and monotonic_s() >= until_s:
                break
        return Progress(done, more=True)

    # ------------------------------------------------------------------------------- under the deliver lock

    def _put(self, batch: list[_Due]) -> tuple[list[PutResult], _RoomNeededError | None]:
        """Delivers a batch, counts what of it was delivered, and says what is missing for the rest."""
        messages = [one.message for one in batch if one.message is not None]
        if not messages:
            self._advance(batch, 0)
            return [], None
        try:
            put, room = self._append([self._delivery(message) for message in messages])
        except MessageIllegalError:
            return self._put_one(batch)  # nothing was written: all are checked before
        except StoreError as error:
            self._advance(batch, len(error.results or ()))
            raise
        self._advance(batch, len(put))
        return put, room

    def _append(self, messages: list[Message]) -> tuple[list[PutResult], _RoomNeededError | None]:
        """Appends as many as there is room for. After another error than a StoreError they are left to be counted."""
        assert self._appender is not None
        self._progress.begin()
        try:
            put = self._appender.put_with(self._room, messages)
        except _RoomNeededError as error:
            return error.results or [], error
        except MessageIllegalError:
            self._progress.finish()
            raise
        failpoint("deliver.appended")
        return put, None

    def _put_one(self, batch: list[_Due]) -> tuple[list[PutResult], _RoomNeededError | None]:
        """For a batch with a message that cannot be put: the first of its messages. One that cannot be put even without the name of its
        source is stepped over."""
        for one in batch:
            for named in (True, False) if one.message is not None else ():
                assert one.message is not None
                try:
                    put, room = self._append([self._delivery(one.message, named=named)])
                except MessageIllegalError as error:
                    log.warning("%s: a delayed message cannot be delivered: %s", one.message, error)
                    continue
                self._advance([one], len(put))
                return put, room
            self._advance([one._replace(message=None)], 0)
        return [], None

    def _advance(self, batch: list[_Due], delivered: int) -> None:
        """Counts the first `delivered` messages of a batch, and what is stepped over between them."""
        for one in batch:
            if one.message is not None:
                if delivered == 0:
                    break
                delivered -= 1
            self._progress.move(one.slot, one.queue_offset + 1)
        failpoint("deliver.counted")
        self._progress.finish()

    def _delivery(self, message: Message, *, named: bool = True) -> Message:
        """What is put for a message that is due; it says where from, if it has room for that."""
        properties = (message.properties_bytes or b"").rstrip(b"\x02")
        with_source = properties + f"\x02{SOURCE}\x01{source_text(message)}".encode()
        if named and len(with_source) <= PROPERTIES_BYTES_MAX:
            properties = with_source
        topic, queue_id = _target(message.properties)
        return due_message(message, topic, queue_id, properties)

    def _due(self, now_ms: int, limit: int) -> list[_Due]:
        """What is due, in the order of due times; within a level in the order of its queue."""
        heads: list[tuple[int, int, int, int, Message | None]] = []
        batch: list[_Due] = []
        size = 0

        def push(queue_id: int, slot: int, begin: int) -> None:
            head = self._head(self._queues.get(slot), begin, now_ms)
            if head is not None:
                heapq.heappush(heads, (head[0], queue_id, slot, head[1], head[2]))

        for queue_id, slot in self._progress.slots().items():
            push(queue_id, slot, self._progress.offset(slot))
        while heads and len(batch) < limit and size < BATCH_BYTES:
            _, queue_id, slot, queue_offset, message = heapq.heappop(heads)
            batch.append(_Due(slot, queue_offset, message))
            size += 0 if message is None else message.size_bytes
            push(queue_id, slot, queue_offset + 1)
        return batch

    def _head(self, queue: ConsumeQueue, begin: int, now_ms: int) -> tuple[int, int, Message | None] | None:
        """(due time, queue offset, message) of a queue's first message from `begin` on, if it is due."""
        at = queue.next_message(begin, queue.max_offset)
        entry = None if at is None else queue.entry(at)
        if at is None or entry is None:
            return None
        noted_ms = _due_time(queue, entry)
        known = self._waiting.get(queue.slot)
        if known is not None and known[:2] == (at, noted_ms) and known[2] > now_ms:
            return None
        try:
            message = self._commit_log.read(entry.physical_offset)
        except (OffsetError, CorruptRecordError):
            log.exception("%s/%d: delayed message %d cannot be read", queue.topic, queue.queue_id, at)
            return 0, at, None
        due_ms = self._checked(noted_ms, message, queue.slot, at, now_ms)
        if due_ms > now_ms:
            self._waiting[queue.slot] = at, noted_ms, due_ms
            return None
        try:
            _target(message.properties)
        except ValueError as error:
            log.warning("%s/%d: delayed message %d cannot be delivered: %s", queue.topic, queue.queue_id, at, error)  # fmt: skip
            return due_ms, at, None
        return due_ms, at, message

    def _checked(self, due_ms: int | None, message: Message, slot: int, at: int, now_ms: int) -> int:
        """A due time that no table of levels makes came to harm: then it is that of the levels of now. A message that a wrong clock
        stamped waits its delay from when this process came to it: nobody knows when it was put, and never is it early."""
        delay_ms = self._levels_ms[min(max(delay_level_of(message.properties), 1), len(self._levels_ms)) - 1]
        if message.store_timestamp_ms - now_ms > store_clock.jump_ms(self._control):
            if self._stamped_wrong.get(slot, (-1, 0))[0] != at:
                self._stamped_wrong[slot] = at, now_ms + delay_ms
            return self._stamped_wrong[slot][1]
        if due_ms is not None and is_due_time(due_ms, message.store_timestamp_ms):
            return due_ms
        return message.store_timestamp_ms + delay_ms

    # ---------------------------------------------------------------------------------------------- looking

    def next_due_ms(self) -> int | None:
        """When the next message that is dispatched is due, None when none waits."""
        due: list[int] = []
        for slot in self._progress.slots().values():
            queue = self._queues.get(slot)
            at = queue.next_message(self._progress.offset(slot), queue.max_offset)
            entry = None if at is None else queue.entry(at)
            if entry is not None:
                noted_ms, known = _due_time(queue, entry), self._waiting.get(slot)
                due.append(known[2] if known is not None and known[:2] == (at, noted_ms) else noted_ms or 0)
        return min(due, default=None)

    def idle_s(self) -> float:
        """How long a thread may sleep: until the next message is due, as long as RocketMQ's at most. One that is due already is
        somebody else's, who delivers now."""
        due_ms = self.next_due_ms()
        left_ms = IDLE_MS if due_ms is None else due_ms - clock.now_ms(self._control)
        return min(left_ms if left_ms > 0 else BUSY_MS, IDLE_MS) / 1000


def _due_time(queue: ConsumeQueue, entry: QueueEntry) -> int | None:
    """The due time in an entry, or in the extended unit that it leads to; None where that is gone."""
    if not ext.is_address(entry.tags_code):
        return entry.tags_code
    try:
        unit = None if queue.ext is None else queue.ext.get(entry.tags_code)
    except CorruptRecordError:
        return None
    return None if unit is None else unit.tags_code


def _target(properties: Any) -> tuple[str, int]:
    """Topic and queue id that a delayed message goes to. Raises ValueError."""
    topic, queue_id = properties.get("REAL_TOPIC"), properties.get("REAL_QID", "")
    if not topic:
        raise ValueError("it names no REAL_TOPIC")
    if topic in (HALF_TOPIC, SCHEDULE_TOPIC):
        raise ValueError(f"REAL_TOPIC is {topic}")
    if not (queue_id.isascii() and queue_id.isdecimal() and int(queue_id) <= 0x7FFFFFFF):
        raise ValueError(f"REAL_QID is {queue_id!r}")
    return topic, int(queue_id)
