"""Messages that wait until a time of their own: listed, cancelled, given another time.

Each call appends a record that names the waiting message as its source, under the deliver lock, as a delivery does. So
of a delivery and a cancellation one happens and the other finds nothing to do, whatever is killed when. The record that
cancels goes to a queue of SCHEDULE_TOPIC_XXXX of which nothing is delivered.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterator
from functools import partial

from cystore import clock
from cystore._native.append.appender import Appender
from cystore._native.derived.delay import replace_one
from cystore._native.derived.transfer import carried_due_ms, carried_properties, source_text
from cystore._native.memory.control import WROTE, Control
from cystore._native.record.message import Message, PutResult, due_message
from cystore._native.record.properties import changed_properties
from cystore._native.system.failpoint import failpoint
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.derived.reading.reader import Reader
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.flush import Flusher
from cystore.errors import (
    CorruptRecordError,
    MessageIllegalError,
    OffsetError,
    StoreLockedError,
    StoreTimeoutError,
)
from cystore.layout import FLAGS, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import DeliveryProgress
from cystore.services.delay.recurring import EVERY, every_of
from cystore.services.delay.timer import ENDS_QUEUE_ID, TIMER_QUEUE_ID, Due
from cystore.services.delay.timer_blocks import begin_of
from cystore.services.delay.transfer import BATCH_MESSAGES, NoRoom, RoomNeededError, Transfer
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed
from cystore.value_class import value_class

LOCK_WAIT_MS = 10_000  # for a process that delivers
SAME_KEY_MAX = 10_000  # messages with one key that one call looks at, the newest
FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]

Move = Callable[[Message], Message]


@value_class(frozen=True)
class DelayedMessage:
    """A message that waits until a time of its own: `topic` and `queue_id` where it goes to, `deliver_at_ms` (ms since
    the epoch), and the place and time of its put. `message` is the waiting record, as it is stored. `every_ms`: it
    comes again."""

    topic: str
    queue_id: int
    deliver_at_ms: int
    keys: tuple[str, ...]
    tags: str | None
    body: memoryview
    physical_offset: int
    store_timestamp_ms: int
    message: Message
    every_ms: int | None = None


class Withdrawals:
    """Finds and moves the messages of one store's timer. Any process may do it."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        reader: Reader,
        progress: DeliveryProgress,
        dispatch_help: DispatchHelp,
        flusher: Flusher,
        appender: Appender | None,
        config: StoreConfig,
    ) -> None:
        self._control, self._commit_log, self._reader = control, commit_log, reader
        self._progress, self._dispatch_help = progress, dispatch_help
        self._flusher, self._config = flusher, config
        self._transfer = None if appender is None else Transfer(progress, appender)
        self._append = None if appender is None else partial(appender.put_with, NoRoom(appender.policy))

    # ------------------------------------------------------------------------------------------- changing

    def cancel(self, topic: str, key: str) -> int:
        """Cancels the waiting messages of a topic with a key; returns their number."""
        return self._move(lambda: self._with_key(topic, key), _cancelled)

    def cancel_at(self, physical_offset: int) -> int:
        """Cancels the waiting message whose record begins there."""
        return self._move(lambda: self._at(physical_offset), _cancelled)

    def reschedule(self, topic: str, key: str, due_ms: int) -> int:
        """Gives the waiting messages of a topic with a key another due time; returns their number."""
        return self._move(lambda: self._with_key(topic, key), lambda message: self._due_at(message, due_ms))

    def reschedule_at(self, physical_offset: int, due_ms: int) -> int:
        """The same for the waiting message whose record begins there."""
        return self._move(lambda: self._at(physical_offset), lambda message: self._due_at(message, due_ms))

    def _due_at(self, message: Message, due_ms: int) -> Message:
        now_ms = clock.now_ms(self._control)
        if due_ms - now_ms > self._config.timer_max_delay_s * 1000:
            raise MessageIllegalError(
                f"deliver_at_ms: the message would wait {due_ms - now_ms} ms, at most "
                f"{self._config.timer_max_delay_s * 1000} (timer_max_delay_s)"
            )
        properties = carried_properties(message, max(due_ms, 1))
        if properties is None:
            raise MessageIllegalError(f"{message!r}: its properties have no room for another due time")
        return due_message(message, SCHEDULE_TOPIC, TIMER_QUEUE_ID, properties)

    def _move(self, find: Callable[[], list[Message]], made: Move) -> int:
        """Appends a record for each message that `find` gives and that still waits. It looks under the deliver lock: no
        other process moves or delivers them meanwhile."""
        return self._move_one(find, made) or undisturbed(partial(self._move_now, find, made))

    def _move_one(self, find: Callable[[], list[Message]], made: Move) -> int:
        """The same in the caller's thread, if exactly one message waits and nothing is in the way; else 0. Only a
        kernel has the lock, so no signal handler can meet the lock of its own thread."""
        progress, timer = self._progress, self._progress.timer
        if (
            self._append is None
            or self._control.flags & FLAG_SLAVE
            or progress.shared.unfinished
            or timer.slot < 0
        ):
            return 0
        end = self._control.queue_end(timer.slot)  # before the look: what is moved meanwhile makes it longer
        waiting = [message for message in find() if progress.waits(TIMER_QUEUE_ID, message.queue_offset)]
        if len(waiting) != 1:
            return 0
        at = waiting[0].queue_offset
        block = timer.blocks.make(begin_of(at))
        put = replace_one(progress.shared, block, timer.slot, at, end, self._append, [made(waiting[0])])
        if put is None:
            return 0
        self._reach(put)
        return 1

    def _reach(self, put: list[PutResult]) -> None:
        if put and self._config.flush_disk_type == "sync":
            self._flusher.flush_to(put[-1].physical_offset + put[-1].size_bytes)

    def _move_now(self, find: Callable[[], list[Message]], made: Move) -> int:
        assert self._transfer is not None
        control, done = self._control, 0
        put: list[PutResult] = []
        if control.flags & FLAG_SLAVE:
            raise MessageIllegalError("this store is a slave: ask its master")
        while True:
            room: RoomNeededError | None = None
            with self._turn():
                timer = self._progress.timer
                found = find() if timer.slot >= 0 else []
                waits = partial(self._progress.waits, TIMER_QUEUE_ID)
                waiting = [message for message in found if waits(message.queue_offset)][:BATCH_MESSAGES]
                if waiting:
                    for message in waiting:
                        timer.blocks.make(begin_of(message.queue_offset))  # before anything is appended
                    put, room = self._transfer.append([made(message) for message in waiting])
                    failpoint("withdraw.appended")
                    self._transfer.leave(
                        [(timer.slot, message.queue_offset, message) for message in waiting], put
                    )
                    failpoint("withdraw.counted")
                    self._progress.finish()
                    done += len(put)
            self._reach(put)
            if room is not None:
                room.make()
            elif len(waiting) < BATCH_MESSAGES:
                return done

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The deliver lock; everything that left is noted."""
        with self._control.held_if_free("deliver", within_ms=LOCK_WAIT_MS) as turn:
            if not turn.held:
                if self._control.turn_owner("deliver") == os_threads.native_id():
                    raise StoreLockedError(
                        "an interrupted call of this thread delivers messages or ends a transaction: try again when "
                        "the signal handler has returned"
                    )
                raise StoreTimeoutError(
                    f"another process delivers for more than {LOCK_WAIT_MS} ms; try again"
                )
            self._progress.count()
            yield

    # -------------------------------------------------------------------------------------------- finding

    def _with_key(self, topic: str, key: str) -> list[Message]:
        # One whose `expires_at_ms` is over waits nevertheless: readers leave it out when it is delivered.
        found = self._reader.query(SCHEDULE_TOPIC, key, SAME_KEY_MAX, with_expired=True)
        return [
            message
            for message in found
            if message.queue_id == TIMER_QUEUE_ID and message.properties.get("REAL_TOPIC") == topic
        ]

    def waiting_once(self, topic: str, key: str) -> Message | None:
        """The oldest message with this unique key that waits for its delivery to a topic, whatever it waits for."""
        if not self._progress.slots():
            return None
        self._progress.settle()
        found = self._with_unique_key(topic, key)
        waiting = self._first_waiting(found)
        if waiting is None and found:  # each left, or its copy with another time came behind the look
            waiting = undisturbed(partial(self._look_again, topic, key))
        return waiting

    def _look_again(self, topic: str, key: str) -> Message | None:
        with self._turn():
            return self._first_waiting(self._with_unique_key(topic, key))

    def _first_waiting(self, found: list[Message]) -> Message | None:
        waits = self._progress.waits
        return next((one for one in found if waits(one.queue_id, one.queue_offset)), None)

    def _with_unique_key(self, topic: str, key: str) -> list[Message]:
        found = self._reader.query(SCHEDULE_TOPIC, key, SAME_KEY_MAX, with_expired=True, read_end=WROTE)
        return [
            message
            for message in reversed(found)
            if message.unique_key == key and message.properties.get("REAL_TOPIC") == topic
        ]

    def _at(self, physical_offset: int) -> list[Message]:
        message = self._commit_log.read(physical_offset)
        is_timed = message.topic == SCHEDULE_TOPIC and message.queue_id == TIMER_QUEUE_ID
        return [message] if is_timed else []

    def _undispatched(self, first: int, begin_ms: int, end_ms: int) -> list[tuple[Due, int]]:
        """The messages of the timer from a queue offset on that have no entry yet, with their places in the log: a
        process that only reads does not dispatch."""
        control = self._control
        if control.dispatched >= control.wrote:
            return []
        found = []
        for message in self._commit_log.scan(control.dispatched):
            if message.topic == SCHEDULE_TOPIC and message.queue_id == TIMER_QUEUE_ID:
                due_ms = carried_due_ms(message) or 0
                if message.queue_offset >= first and begin_ms <= due_ms < end_ms:
                    found.append(((due_ms, message.queue_offset), message.physical_offset))
        return found

    def _read(self, queue: ConsumeQueue, queue_offset: int, place: int | None) -> Message | None:
        if place is None:
            entry = queue.entry(queue_offset)
            place = None if entry is None else entry.physical_offset
        return None if place is None else self._commit_log.read(place)

    def pending(self, topic: str | None, begin_ms: int, end_ms: int) -> Iterator[DelayedMessage]:
        """The waiting messages that are due in [begin_ms, end_ms), in the order of due times."""
        progress, timer = self._progress, self._progress.timer
        if self._transfer is not None:
            self._dispatch_help.run()
            progress.settle()
        if timer.slot < 0:
            return
        fresh = self._undispatched(timer.queue.max_offset, begin_ms, end_ms)
        places = {due[1]: physical_offset for due, physical_offset in fresh}
        found = timer.in_order(begin_ms, end_ms, progress.offset(timer.slot))
        for _, queue_offset in heapq.merge(found, sorted(due for due, _ in fresh if timer.waits(due[1]))):
            try:
                message = self._read(timer.queue, queue_offset, places.get(queue_offset))
            except (OffsetError, CorruptRecordError):
                continue  # the delivery reports it
            if message is not None and topic in (None, message.properties.get("REAL_TOPIC")):
                yield _shown(message)


def _cancelled(message: Message) -> Message:
    """The record that cancels a message. It has no body and no keys: no search finds it in the message's place."""
    properties = changed_properties(
        message.properties_bytes,
        {"DELAY_SOURCE": source_text(message)},
        ("KEYS", "UNIQ_KEY", "TAGS", "EXPIRES_AT_MS", EVERY),
    )
    return due_message(message, SCHEDULE_TOPIC, ENDS_QUEUE_ID, properties, sys_flag=0, empty=True)


def _shown(message: Message) -> DelayedMessage:
    properties, every = message.properties, every_of(message)
    return DelayedMessage(
        topic=properties.get("REAL_TOPIC", ""),
        queue_id=int(properties.get("REAL_QID", "0")),
        deliver_at_ms=carried_due_ms(message) or 0,
        keys=message.keys,
        tags=message.tags,
        body=message.body,
        physical_offset=message.physical_offset,
        store_timestamp_ms=message.store_timestamp_ms,
        message=message,
        every_ms=None if every is None else every.every_ms,
    )
