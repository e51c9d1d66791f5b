"""Messages that come again: a delivery also appends the copy that waits for the next time, in one piece.

The property DELAY_EVERY of the waiting record says how: "every_ms missed until_ms". A kernel never delivers such a
record by itself (due_run.pyx). The delivered message has the time that it was due in DELAY_AT instead.
"""

from __future__ import annotations

from typing import NamedTuple

from cystore._native.derived.transfer import carried_properties, source_text, target_of
from cystore._native.record.argument_checks import whole
from cystore._native.record.message import Message, due_message
from cystore._native.record.properties import changed_properties, message_for_topic
from cystore.errors import MessageIllegalError
from cystore.layout import BLANK_SIZE_MIN, CONSTANTS, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import DUE, SOURCE
from cystore.services.delay.timer import TIMER_QUEUE_ID

EVERY, AT = "DELAY_EVERY", "DELAY_AT"
ONCE, ALL, SKIP = "once", "all", "skip"
MISSED = (ONCE, ALL, SKIP)
EVERY_MS_LEAST = 1000
LATE_MS = 60_000  # a time at which nobody delivered for longer is missed
AT_ONCE = 64  # missed times that are delivered together
FOR_EVER = 0
PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]
DELIVERY_ROOM = CONSTANTS["DELAY_PROPERTY_ROOM"][0]  # bytes that delivery may add to the properties
FIXED_BYTES_MAX = CONSTANTS["RECORD_HEAD_BYTES_MAX"][0] + CONSTANTS["RECORD_TAIL_FIXED_BYTES"][0]
TOPIC_BYTES_MAX = CONSTANTS["TOPIC_BYTES_MAX"][0]


class Every(NamedTuple):
    """How a message comes again: each `every_ms`, until `until_ms` (0: for ever). `missed`: what becomes of times at
    which nobody delivered."""

    every_ms: int
    missed: str
    until_ms: int

    @property
    def text(self) -> str:
        """The value of DELAY_EVERY."""
        return f"{self.every_ms} {self.missed} {self.until_ms}"

    def plan(self, due_ms: int, now_ms: int, most: int) -> tuple[list[int], int | None]:
        """For a message that was due at `due_ms`: the times that are delivered now, at most so many, and the next one;
        None: it comes no more."""
        past = max(now_ms - due_ms, 0) // self.every_ms  # further times that are over
        left = past + most  # further times before the end
        if self.until_ms != FOR_EVER:
            left = max(self.until_ms - due_ms, 0) // self.every_ms
        past = min(past, left)
        if self.missed == ALL:
            count = min(past + 1, most)
            times = [due_ms + number * self.every_ms for number in range(count)]
            past = count - 1
        else:
            last_ms = due_ms + past * self.every_ms
            is_missed = self.missed == SKIP and now_ms - last_ms > min(LATE_MS, self.every_ms)
            times = [] if is_missed else [last_ms]
        return times, due_ms + (past + 1) * self.every_ms if past < left else None


def every_of(message: Message) -> Every | None:
    """How a waiting message comes again; None for one that does not."""
    words = message.properties.get(EVERY, "").split(" ")
    if len(words) != len(Every._fields) or words[1] not in MISSED:
        return None
    numbers = words[0], words[2]
    if not all(word.isascii() and word.isdecimal() and len(word) <= 17 for word in numbers):
        return None
    return Every(max(int(words[0]), 1), words[1], int(words[2]))


def waiting_of(message: Message, every: Every, due_ms: int, host: bytes, file_bytes: int) -> Message:
    """The record of a message that is to be put, which waits until `due_ms` for the first time. Raises
    MessageIllegalError."""
    topic = message.topic
    assert topic is not None
    notes = {EVERY: every.text, DUE: str(due_ms), "REAL_TOPIC": topic, "REAL_QID": str(message.queue_id)}
    record = message_for_topic(message, SCHEDULE_TOPIC, TIMER_QUEUE_ID, changed_properties(b"", notes), host)
    check_room_to_wait(record, topic, file_bytes // 2)  # for the delivered message and the next copy
    return record


def copies_of(
    message: Message, every: Every, due_ms: int, now_ms: int, most: int, file_bytes: int
) -> list[Message]:
    """The records that take the place of a waiting message that is due: the delivered ones, then the copy that waits
    for the next time. One segment holds all of them."""
    size = message.size_bytes + TOPIC_BYTES_MAX + DELIVERY_ROOM
    most = max(1, min(most, AT_ONCE, (file_bytes - BLANK_SIZE_MIN) // size - 1))
    times, next_ms = every.plan(due_ms, now_ms, most)
    topic, queue_id = target_of(message)
    copies = []
    for time_ms in times:
        notes = {AT: str(time_ms), SOURCE: source_text(message)}
        properties = changed_properties(message.properties_bytes, notes, (DUE, EVERY))
        copies.append(due_message(message, topic, queue_id, properties))
    following = None if next_ms is None else carried_properties(message, next_ms)
    if following is not None:
        copies.append(due_message(message, SCHEDULE_TOPIC, TIMER_QUEUE_ID, following))
    return copies


def due_time_of(deliver_at_ms: int | None, delay_ms: int | None, now_ms: int, most_ms: int) -> int | None:
    """The time that one of the two gives; None if neither is given. Raises MessageIllegalError for one that is too far
    away."""
    if deliver_at_ms is None and delay_ms is None:
        return None
    if deliver_at_ms is not None:
        due_ms = whole("deliver_at_ms", deliver_at_ms, 1)
    else:
        due_ms = now_ms + 1 + whole("delay_ms", delay_ms, 0)
    if due_ms - now_ms > most_ms + 1:
        raise MessageIllegalError(
            f"{'delay_ms' if deliver_at_ms is None else 'deliver_at_ms'}: the message would wait {due_ms - now_ms} ms, "
            f"at most {most_ms} (timer_max_delay_s)"
        )
    return due_ms


def check_room_to_wait(record: Message, topic: str, file_bytes: int) -> None:
    """Refuses a message that waits in `record` if a log file of so many bytes could not take it when it is delivered.
    Raises MessageIllegalError."""
    pairs = record.properties.items()
    properties = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs) + DELIVERY_ROOM
    if properties > PROPERTIES_BYTES_MAX:
        raise MessageIllegalError(
            f"properties: {properties - DELIVERY_ROOM} bytes with those of the store, at most "
            f"{PROPERTIES_BYTES_MAX - DELIVERY_ROOM} for a delayed message"
        )
    size = FIXED_BYTES_MAX + len(record.body) + max(len(topic), len(SCHEDULE_TOPIC)) + properties
    if size + BLANK_SIZE_MIN > file_bytes:
        raise MessageIllegalError(
            f"body: delivered, the record has up to {size} bytes, and there are {file_bytes} for it"
        )
