"""A consumer: it gets the messages of its share of a group's queues, and acknowledges each (DefaultMQPushConsumer,
ProcessQueue).

A message stays with the consumer until it is acknowledged. A message that is refused (`retry`), or not acknowledged
within its invisible time, goes to the group's retry topic at a delay level, and after `max_reconsume_times` to its dead
letters. Only then is it settled in its own queue, so a kill between two steps gives it once more, and never loses it.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType

from cystore import clock
from cystore._native.lookup.get_result import GetResult
from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import listed, whole
from cystore._native.record.message import Message
from cystore._native.record.properties import queues_of
from cystore._native.system.failpoint import failpoint
from cystore.attachment.attachment import StoreHandle
from cystore.clock import monotonic_s, wait_s
from cystore.consumers.groups import FIRST, Groups, place, table_of
from cystore.consumers.in_flight import QueueInFlight
from cystore.consumers.names import retry_topic, users_group
from cystore.consumers.retries import retry_of
from cystore.consumers.shares import Leases, Member
from cystore.consumers.table import NO_OFFSET
from cystore.derived.reading.request import wanted
from cystore.engine.files.progress import Progress
from cystore.engine.manifest.topic_names import checked_topic
from cystore.errors import (
    CorruptRecordError,
    MessageIllegalError,
    StoreClosedError,
    StoreConfigError,
    StoreError,
    StoreNotWritableError,
    shown,
)
from cystore.filters.given_filter import Filter
from cystore.layout import LMQ_PREFIX, refuse_own_topic
from cystore.results import GetStatus
from cystore.services.threads import ServiceThread
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

PULL_COUNT = 32  # RocketMQ's pullBatchSize
TURN_S = 1.0  # between two looks at the members of the group
SAVE_S = 5.0  # RocketMQ's flushConsumerOffsetInterval
WAIT_SLICE_S = 0.25
LEAST_TURN_S = 0.05
LOOKS_AT_ONCE = 8  # reads of a queue in which a filter finds nothing, before other queues have a turn
BEGUN, BEGINNING = 0, 1  # the mark of a topic, in its row's offset
MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY)
STEPPED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL, *MOVED)


class Consumer:
    """A consumer of a group, made by `store.consumer`. Safe for threads. It belongs to the process that made it.

    All consumers of a group, in all processes of a host, divide the queues of each topic evenly; a new one gets its
    share within a second or two, and so do the others when one ends or is killed. The consumer also gets the group's
    retry topic.

    `topics`: one or several. `tags` and `filter`: as for `get`; they do not apply to the retry topic. `begin`: a group
    without an offset begins at "first", "last", or at the first message that was stored at a time in ms or later.
    `invisible_ms`: a message that is not acknowledged within this time comes again. `max_reconsume_times`: a message
    that came again so often becomes a dead letter. `max_in_flight`: the most messages of one queue that are not
    acknowledged (pullThresholdForQueue).

    Iteration gives one message after the other until the consumer or the store is closed. A separate thread serves the
    queues, so that messages of a program that hangs come to other consumers.
    """

    def __init__(
        self,
        store: StoreHandle,
        group: str,
        topics: str | Sequence[str],
        *,
        tags: str | None,
        filter: Filter | None,
        begin: str | int,
        invisible_ms: int,
        max_reconsume_times: int,
        max_in_flight: int,
    ) -> None:
        self.group = users_group(group)
        self.topics = _checked_topics(topics)
        self._has_light = any(topic.startswith(LMQ_PREFIX) for topic in self.topics)
        wanted(tags, filter)  # raises for a value that is not a filter
        self._tags, self._filter = tags, filter
        self._begin = place("begin", begin)
        self._invisible_s = whole("invisible_ms", invisible_ms, 1, 1 << 40, StoreConfigError) / 1000
        self._max_times = whole("max_reconsume_times", max_reconsume_times, 0, 1 << 30, StoreConfigError)
        self._max_in_flight = whole("max_in_flight", max_in_flight, 1, 1 << 30, StoreConfigError)
        self._store, self._pid, self._closed = store, os.getpid(), False
        self._lock, self._turn_at_s, self._save_at_s = os_threads.RLock(), 0.0, monotonic_s() + SAVE_S
        self._queues: OrderedDict[tuple[str, int], QueueInFlight] = OrderedDict()
        self._parts = store._writable()
        self._found = table_of(self._parts)
        self._table = self._found.table
        self._levels = len(self._parts.config.delay_levels_ms())
        self._locks = self._table.locks()
        try:
            self._thread = _thread_of(self)
        except BaseException:
            self._closed = True
            self._locks.close()
            raise

    def _join_group(self) -> None:
        """Makes the leases and the members. A group does not begin if there is no room for the thread."""
        self._begin_group()
        self._leases = Leases(self._locks)
        self._members = {
            topic: Member(self._locks, self._table.row((topic, self.group, -1)))
            for topic in (*self.topics, retry_topic(self.group))
        }

    def _begin_group(self) -> None:
        """Sets the group's offset in its retry topic, so that its lag counts there from the first message on. Also sets
        the offsets of a group that does not begin at the first message."""
        again = retry_topic(self.group)
        for queue_id, slot in self._found.queues(again) or [(0, -1)]:
            row = self._table.row((again, self.group, queue_id))
            first = self._parts.control.queue_minimum(slot) if slot >= 0 else 0
            self._table.set_offset(row, first, expected=NO_OFFSET)
        for topic in self.topics:
            self._begin_topic(topic)

    def _begin_topic(self, topic: str) -> None:
        """Begins a topic in which the group has no offset, unless another consumer did. The other consumers wait for
        that, else they would read from the first message. If a consumer is killed here, the row's mark shows that the
        topic has to be begun again."""
        groups, mark = Groups(self._store), self._table.row((topic, self.group, -1))
        with self._table.beginning(mark):
            state = self._table.offset(mark)
            if state == BEGUN:
                return
            if state == NO_OFFSET:
                has_offset = any(of == topic for of, _ in groups.offsets(self.group))
                if has_offset or self._begin == FIRST:
                    return
                self._table.set_offset(mark, BEGINNING)
            for queue_id, _ in self._found.queues(topic):
                if groups.offset(self.group, topic, queue_id) is None:
                    groups.reset(self.group, topic, self._begin, queue_id=queue_id)
            self._table.set_offset(mark, BEGUN)

    # ------------------------------------------------------------------------------------------- the program

    def poll(self, max_count: int = PULL_COUNT, timeout_s: float | None = 0.0) -> list[Message]:
        """Up to `max_count` messages, as soon as there is one; an empty list after `timeout_s` (None: waits for ever).

        Each is to be acknowledged (`ack`) or refused (`retry`) within the invisible time. Raises StoreClosedError.
        """
        max_count = whole("max_count", max_count, 1, 1 << 30, StoreConfigError)
        until_s = monotonic_s() + wait_s(timeout_s)
        while True:
            control = self._usable()
            seen = control.append_seq
            with self._lock:
                self._usable()  # `close` may have come in between
                if monotonic_s() >= self._turn_at_s:
                    self._rebalance()
                given = self._collect(max_count)
            left_s = until_s - monotonic_s()
            if given or left_s <= 0:
                return given
            control.wait_append(seen, max(1, int(min(left_s, WAIT_SLICE_S) * 1000)))

    def __iter__(self) -> Iterator[Message]:
        while not self._closed:
            try:
                yield from self.poll(1, WAIT_SLICE_S)
            except StoreClosedError:
                if self._pid != os.getpid():
                    raise
                return

    def ack(self, *messages: Message) -> int:
        """Acknowledges messages: the group does not get them again. Returns the number of messages that were still this
        consumer's; the others went to the retry topic before, or were reset, and come again."""
        self._usable()
        count, touched = 0, set()
        with self._lock:
            for queue, message in [(self._queue_of(message), message) for message in messages]:
                if queue is not None and queue.settle(queue.offset_of(message)):
                    touched.add(queue.queue)
                    count += 1
            for name in touched:
                self._commit(self._queues[name])
        return count

    def retry(self, message: Message, *, delay_level: int = 0, delay_ms: int | None = None) -> bool:
        """Refuses a message: it comes again after a delay level, by default 3 + reconsume_times, or after `delay_ms`
        (at most timer_max_delay_s). It becomes a dead
        letter if it already came to this group again `max_reconsume_times` times, if it has no room for the notes of a
        retry, or at once with a negative level. False if the message is not this consumer's any more.

        Raises the errors of `put`; then the message stays with this consumer, which tries again later.
        """
        delay_level = whole("delay_level", delay_level, -1, 1 << 30, StoreConfigError)
        due_ms = None
        if delay_ms is not None:
            if delay_level:
                raise StoreConfigError("delay_ms: give a delay level or delay_ms, not both")
            longest_ms = self._parts.config.timer_max_delay_s * 1000
            due_ms = (
                clock.now_ms(self._parts.control)
                + 1
                + whole("delay_ms", delay_ms, 0, longest_ms, StoreConfigError)
            )
        self._usable()
        with self._lock:
            queue = self._queue_of(message)
            if queue is None or queue.offset_of(message) not in queue.given:
                return False
            self._send_back(queue, message, delay_level, due_ms)
            return True

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The queues that this consumer has now: (topic, queue id). None in a forked child."""
        if self._pid != os.getpid():
            return []  # the lock is the parent's
        with self._lock:
            return sorted(self._queues)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """Leaves the group. Messages that are not acknowledged come to the other consumers, at once. Saves the
        offsets. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        self._thread.stop()
        with self._lock:
            self._queues.clear()
            self._locks.close()
        if not self._parts.control.closed:
            self._table.save()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError:
            if error is None:
                raise
            log.exception("consumer of %s: closed after an error", self.group)

    def __repr__(self) -> str:
        return f"<Consumer {self.group!r} of {', '.join(self.topics)}{' closed' if self._closed else ''}>"

    # -------------------------------------------------------------------------------------------- inside

    def _usable(self) -> Control:
        """The control block. Raises StoreClosedError, StoreMovedError."""
        if self._pid != os.getpid():
            raise StoreClosedError(
                f"this consumer of {self.group} belongs to process {self._pid}, which forked this one: make "
                "another one here"
            )
        if self._closed:
            raise StoreClosedError(f"the consumer of {self.group} is closed")
        if self._parts.control.closed:
            raise StoreClosedError("the store is closed", path=self._parts.root)
        self._parts.look_at_place()
        return self._parts.control

    def _queue_of(self, message: Message) -> QueueInFlight | None:
        if type(message) is not Message or message.physical_offset is None:
            raise StoreConfigError(
                f"message: must be a message that this consumer gave, not {shown(message)}"
            )
        own, several = (message.topic, message.queue_id), False
        for topic, queue_id, queue_offset in queues_of(message) if self._has_light else ():
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.has_given(queue_offset, message):
                return queue
            several |= topic in self.topics and (topic, queue_id) != own
        # Where it may come from a light queue, another object of the same message says nothing about its own queue.
        return None if several else self._queues.get(own)

    def _collect(self, max_count: int) -> list[Message]:
        """Messages for the program, from each queue in turn. Reads no queue while messages that were read are left, so
        an error of one queue does not lose messages of the others."""
        given = self._give(max_count)
        if not given:
            self._pass_dropped()
            self._fetch_some(max_count)
            given = self._give(max_count)
        return given

    def _give(self, max_count: int) -> list[Message]:
        """Messages that were read, for the program, without those that expired or were removed meanwhile."""
        deadline_s, sees = monotonic_s() + self._invisible_s, self._parts.reader.sees
        given: list[Message] = []
        for name, queue in list(self._queues.items()):
            while len(given) < max_count and len(queue.given) < self._max_in_flight:
                message = queue.give(deadline_s, sees)
                if message is None:
                    break
                given.append(message)
            if len(given) >= max_count:
                self._queues.move_to_end(name)
                break
        return given

    def _pass_dropped(self) -> None:
        """Moves the group's offset over messages that were read and left out. A later poll, or the thread, does it if
        this one gives messages."""
        for queue in list(self._queues.values()):
            if queue.has_dropped:
                (topic, queue_id), minimum = queue.queue, self._parts.control.queue_minimum(queue.slot)
                if queue.committed < minimum:
                    log.warning(
                        "group %s leaves messages of %s/%d out that it had read: they were removed, the queue begins "
                        "at %d now", self.group, topic, queue_id, minimum,
                    )  # fmt: skip
                self._commit(queue)
                queue.has_dropped = False

    def _fetch_some(self, max_count: int) -> None:
        """Reads queues until `max_count` messages are ready. A queue that raises an error is the last one next time."""
        count = 0
        for name, queue in list(self._queues.items()):
            if queue.leaving or len(queue.given) >= self._max_in_flight:
                continue
            self._queues.move_to_end(name)
            self._fetch(queue)
            count += len(queue.ready)
            if count >= max_count:
                return

    def _fetch(self, queue: QueueInFlight) -> None:
        """Reads the next messages of a queue. Logs damaged and missing messages and steps over them, so that they do
        not stop the queue."""
        (topic, queue_id), control = queue.queue, self._parts.control
        own = topic in self.topics
        tags, chosen = (self._tags, self._filter) if own else (None, None)
        get: Callable[..., GetResult] = self._store.get
        if chosen is not None and self._parts.filters is not None:  # bitmaps may tell what is left out
            get = partial(self._parts.reader.get, group=self.group)
        for _ in range(LOOKS_AT_ONCE):
            at = queue.next_offset
            if control.queue_end(queue.slot) == at and control.queue_minimum(queue.slot) <= at:
                return
            try:
                result = get(topic, queue_id, at, PULL_COUNT, tags=tags, filter=chosen)
            except CorruptRecordError:
                log.exception(
                    "group %s steps over the damaged message %d of %s/%d", self.group, at, topic, queue_id
                )
                queue.fetched(at, (), at + 1)
                self._commit(queue)
                continue
            if result.status is GetStatus.FOUND:
                return queue.fetched(at, result.messages, result.next_offset)
            if result.status not in STEPPED or result.next_offset == at:
                return
            if result.status in MOVED:
                log.warning(
                    "group %s continues at %d of %s/%d: its offset %d is outside of the queue, which is [%d, %d)",
                    self.group, result.next_offset, topic, queue_id, at, result.min_offset, result.max_offset,
                )  # fmt: skip
            queue.fetched(at, (), result.next_offset)
            self._commit(queue)

    def _commit(self, queue: QueueInFlight) -> None:
        """Moves the group's offset to the lowest message that is not settled. If a reset moved it meanwhile, the
        queue begins there."""
        lowest = queue.lowest
        if lowest == queue.committed:
            return
        failpoint("consumers.commit")
        if self._table.set_offset(queue.row, lowest, expected=queue.committed):
            queue.committed = lowest
        else:
            self._follow(queue)

    def _follow(self, queue: QueueInFlight) -> None:
        """Begins at the offset that a reset or another consumer's commit gave the group."""
        offset = self._table.offset(queue.row)
        if offset != queue.committed:
            queue.move(self._first(queue.row, queue.slot) if offset == NO_OFFSET else offset)

    def _first(self, row: int, slot: int) -> int:
        """Begins a queue in which the group has no offset."""
        offset = self._parts.control.queue_minimum(slot)
        self._table.set_offset(row, offset, expected=NO_OFFSET)
        return self._table.offset(row)

    def _send_back(
        self, queue: QueueInFlight, message: Message, delay_level: int, due_ms: int | None = None
    ) -> None:
        """Puts a message into the retry topic or the dead letters, then settles it."""
        record = retry_of(
            message,
            self.group,
            delay_level,
            self._max_times,
            self._levels,
            self._parts.commit_log.file_bytes,
            due_ms,
        )
        appender = self._parts.appender
        assert appender is not None
        try:
            appender.put_many([record])
        except MessageIllegalError as error:  # it fills a whole log file, so not even a dead letter has room
            log.error("%s is no dead letter of %s and stays in its topic: %s", message, self.group, error)
        failpoint("consumers.sent_back")
        queue.settle(queue.offset_of(message))
        self._commit(queue)

    # -------------------------------------------------------------------------------------- the thread

    def _turn(self) -> None:
        """A turn of the thread: queues that came or went, messages whose time is over, resets, the file of offsets."""
        self._usable()
        with self._lock:
            if self._closed:
                return
            if monotonic_s() >= self._turn_at_s:
                self._rebalance()
            self._pass_dropped()
            for queue in list(self._queues.values()):
                self._follow(queue)
                self._expire(queue)
        self._parts.scheduler.run_once()  # messages of the retry topic too: the store may run no service "schedule"
        if monotonic_s() >= self._save_at_s:
            self._save_at_s = monotonic_s() + SAVE_S
            self._table.save()

    def _pause_s(self) -> float:
        """The time until the next turn: until the next deadline or delivery, a second at most."""
        with self._lock:
            deadlines = [end for queue in self._queues.values() for _, end in list(queue.given.values())[:1]]
        due_ms = self._parts.scheduler.next_due_ms()
        delivery_s = TURN_S if due_ms is None else (due_ms - clock.now_ms(self._parts.control)) / 1000
        return max(LEAST_TURN_S, min([TURN_S, delivery_s, *(end - monotonic_s() for end in deadlines)]))

    def _expire(self, queue: QueueInFlight) -> None:
        for message in queue.expired(monotonic_s()):
            offset = queue.offset_of(message)
            if offset not in queue.given:
                return  # a reset moved the queue
            if not self._parts.reader.sees(message, queue.slot, offset):
                queue.settle(offset)
                self._commit(queue)
                continue
            try:
                self._send_back(queue, message, 0)
            except (StoreClosedError, StoreNotWritableError):
                raise  # nothing can be sent back
            except StoreError as error:
                wait_s = queue.put_off(queue.offset_of(message), monotonic_s())
                log.warning("%s cannot be sent back, trying again in %g s: %s", message, wait_s, error)

    def _rebalance(self) -> None:
        """Takes the free queues of this consumer's share, and gives back queues outside of it when all their given
        messages are settled."""
        self._turn_at_s = monotonic_s() + TURN_S
        for topic, member in self._members.items():
            slots = dict(self._found.queues(topic))
            mine = set(member.share(list(slots)))
            for queue_id in sorted(mine):
                if (topic, queue_id) not in self._queues:
                    self._take(topic, queue_id, slots[queue_id])
            for name in [name for name in self._queues if name[0] == topic]:
                queue = self._queues[name]
                queue.leaving = False
                if name[1] not in mine:
                    queue.leave()
                    if not queue.given:
                        del self._queues[name]
        self._leases.keep({queue.row for queue in self._queues.values()})

    def _take(self, topic: str, queue_id: int, slot: int) -> None:
        row = self._table.row((topic, self.group, queue_id))
        if not self._leases.try_take(row):
            return
        offset = self._table.offset(row)
        if offset == NO_OFFSET:
            offset = self._first(row, slot)
        self._queues[topic, queue_id] = QueueInFlight((topic, queue_id), row, slot, offset)
        failpoint("consumers.taken")


def _checked_topics(topics: object) -> tuple[str, ...]:
    """The names of one or several topics, each once. Raises StoreConfigError."""
    names = [topics] if isinstance(topics, str) else listed("topics", topics, StoreConfigError)
    found = tuple(dict.fromkeys(map(checked_topic, names)))
    if not found:
        raise StoreConfigError("topics: name at least one")
    for topic in found:
        refuse_own_topic(topic, "topics", StoreConfigError)
    return found


def _thread_of(consumer: Consumer) -> ServiceThread:
    """The thread of a consumer. It keeps no reference to the consumer, and ends with it."""
    known = weakref.ref(consumer)

    def turn() -> Progress:
        found = known()
        if found is None:
            raise StoreClosedError("the consumer is gone")
        try:
            found._turn()
        except StoreClosedError:
            found._locks.close()  # other consumers take the queues over
            raise
        return Progress(0)

    def pause_s() -> float:
        found = known()
        return LEAST_TURN_S if found is None else found._pause_s()

    with os_threads.works_for(consumer._parts.root):
        return ServiceThread(f"consumer-{consumer.group}", turn, pause_s, prepare=consumer._join_group)
