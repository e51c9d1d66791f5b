"""Messages that wait in SCHEDULE_TOPIC_XXXX: the next one of each queue, and its due time."""

from __future__ import annotations

import logging
from typing import NamedTuple

from cystore._native.derived import queue_ext
from cystore._native.derived.delay import is_due_time
from cystore._native.derived.due_run import DueRuns
from cystore._native.derived.transfer import carried_due_ms, carried_properties, source_text, target_of
from cystore._native.memory import store_clock
from cystore._native.memory.control import Control
from cystore._native.record.message import Message, delay_level_of, due_message
from cystore._native.record.properties import changed_properties
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueue, QueueEntry
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, OffsetError
from cystore.layout import CONSTANTS, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import DUE, SOURCE
from cystore.services.delay.recurring import copies_of, every_of
from cystore.services.delay.timer import TIMER_QUEUE_ID, Due
from cystore.services.delay.transfer import Leaving

log = logging.getLogger("cystore")

PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]


class Head(NamedTuple):
    """The next message of a queue, and its due time by the queue's entry (None: the entry has none any more)."""

    queue_offset: int
    physical_offset: int
    noted_ms: int | None


class WaitingQueues:
    """Finds the next message in each queue of one store."""

    def __init__(self, control: Control, commit_log: CommitLog, config: StoreConfig) -> None:
        self._control, self._commit_log = control, commit_log
        self._levels_ms = config.delay_levels_ms()
        # By a queue's slot: a message that a wrong clock stamped, and its due time.
        self._stamped_wrong: dict[int, tuple[int, int]] = {}

    def head(self, queue: ConsumeQueue, begin: int) -> Head | None:
        """The first message of a queue from `begin` on."""
        at = queue.next_message(begin, queue.max_offset)
        entry = None if at is None else queue.entry(at)
        return (
            None if at is None or entry is None else Head(at, entry.physical_offset, due_time(queue, entry))
        )

    def runs(self, now_ms: int) -> DueRuns:
        """For the messages of one batch, that are due at one time."""
        return DueRuns(self._control, self._commit_log.window(with_expired=True), now_ms)

    def run(
        self, runs: DueRuns, queue: ConsumeQueue, begin: int, until_ms: int, room: int, bytes_room: int
    ) -> tuple[list[Leaving], int, int, int | None]:
        """Copies of a queue's plain messages from `begin` on that are due by `until_ms`, the bytes of their records,
        the queue offset behind them, and the due time of the message there: None if `head` and `read` have to tell."""
        end = queue.max_offset
        file = queue.file_of(begin) if begin < end else None
        if file is None:
            return [], 0, begin, None
        end = min(end, file.end // ENTRY_BYTES)
        return runs.take(file, begin, end, queue.queue_id, queue.slot, until_ms, room, bytes_room)

    def timed(
        self, runs: DueRuns, queue: ConsumeQueue, dues: list[Due], bytes_room: int
    ) -> tuple[list[Leaving], int]:
        """Copies of messages of the timer, and the bytes of their records; no copy where `read` has to look."""
        return runs.take_timed(queue.file_of, dues, queue.queue_id, queue.slot, bytes_room)

    def read(self, queue: ConsumeQueue, head: Head, now_ms: int) -> tuple[Message | None, int]:
        """(message, its due time); None and 0 for an unreadable message, which is reported."""
        try:
            message = self._commit_log.read(head.physical_offset)
        except (OffsetError, CorruptRecordError):
            log.exception(
                "%s/%d: delayed message %d cannot be read", queue.topic, queue.queue_id, head.queue_offset
            )
            return None, 0
        return message, self._due_ms(head, message, queue.slot, now_ms)

    def wait_longer(self, queue: ConsumeQueue, queue_offset: int, due_ms: int) -> Message | None:
        """The copy of a message of the timer with another due time; None for an unreadable message, or one whose
        properties have no room."""
        entry = queue.entry(queue_offset)
        if entry is None:
            return None
        message = self._commit_log.read(entry.physical_offset)
        properties = carried_properties(message, due_ms)
        return (
            None if properties is None else due_message(message, SCHEDULE_TOPIC, TIMER_QUEUE_ID, properties)
        )

    def again(self, message: Message, due_ms: int, now_ms: int, most: int) -> list[Message] | None:
        """The records that take the place of a due message that comes again, at most so many deliveries among them;
        None for one that does not."""
        every = every_of(message)
        if every is None:
            return None
        return copies_of(message, every, due_ms, now_ms, most, self._commit_log.file_bytes)

    def set_aside(self, queue: ConsumeQueue, queue_offset: int, level: int) -> Message | None:
        """The copy of a waiting message that waits for the whole delay of a level, in the queue of that level; None for
        an unreadable message, which is reported when it is the next one."""
        entry = queue.entry(queue_offset)
        if entry is None:
            return None
        message = self._commit_log.read(entry.physical_offset)
        notes = {"DELAY": str(level), SOURCE: source_text(message)}
        properties = changed_properties(message.properties_bytes, notes, (DUE,))
        if len(properties) > PROPERTIES_BYTES_MAX:
            properties = changed_properties(message.properties_bytes, {"DELAY": str(level)}, (SOURCE, DUE))
        return due_message(message, SCHEDULE_TOPIC, level - 1, properties)

    def _due_ms(self, head: Head, message: Message, slot: int, now_ms: int) -> int:
        """The due time of a message.

        A carried message contains it. Otherwise the queue's entry does. The level used is not recorded. An entry that
        no table of levels gives is damaged: then the current levels count. A message that a wrong clock stamped waits
        its whole delay from the time when this process met it, because the time of its put is unknown and it must never
        be early. A carried message waits no longer than it says.
        """
        stored_ms, carried_ms = message.store_timestamp_ms, carried_due_ms(message)
        if message.queue_id == TIMER_QUEUE_ID:
            return carried_ms or 0  # a record without a due time is due at once
        level = min(max(delay_level_of(message.properties), 1), len(self._levels_ms))
        delay_ms = self._levels_ms[level - 1]
        if carried_ms is not None:
            due_ms, delay_ms = carried_ms, max(delay_ms, carried_ms - stored_ms)
        else:
            if head.noted_ms is not None and is_due_time(head.noted_ms, stored_ms):
                delay_ms = head.noted_ms - stored_ms
            due_ms = stored_ms + delay_ms
        if stored_ms - now_ms <= store_clock.jump_ms(self._control):
            return due_ms
        if self._stamped_wrong.get(slot, (-1, 0))[0] != head.queue_offset:
            self._stamped_wrong[slot] = head.queue_offset, now_ms + delay_ms
        return min(due_ms, self._stamped_wrong[slot][1])


def has_target(queue: ConsumeQueue, head: Head, message: Message) -> bool:
    """Whether a waiting message can be delivered; it is reported if not."""
    try:
        target_of(message)
    except ValueError as error:
        report_undeliverable(queue, head.queue_offset, error)
        return False
    return True


def report_undeliverable(queue: ConsumeQueue, queue_offset: int, error: Exception) -> None:
    """Reports a message that is stepped over."""
    log.warning(
        "%s/%d: delayed message %d cannot be delivered: %s", queue.topic, queue.queue_id, queue_offset, error
    )


def due_time(queue: ConsumeQueue, entry: QueueEntry) -> int | None:
    """The due time in an entry, or in its extended unit; None if that unit is gone."""
    if not queue_ext.is_address(entry.tags_code):
        return entry.tags_code
    try:
        unit = None if queue.ext is None else queue.ext.get(entry.tags_code)
    except CorruptRecordError:
        return None
    return None if unit is None else unit.tags_code
