"""The records that bring a message to its group again, and the dead letters
(SendMessageProcessor.asyncConsumerSendMsgBack).

A message that was not processed waits at a delay level for `%RETRY%group`, with one more in `reconsume_times`. After
`max_reconsume_times` it goes to `%DLQ%group`. Its properties name its first place: RETRY_TOPIC is its topic,
ORIGIN_MESSAGE_ID its message id in RocketMQ's spelling.

Each group counts for itself: a message that does not come from the group's own retry topic was not consumed again by
this group. RocketMQ counts over all groups, so a second group that reads a dead letter cannot retry it there.
"""

from __future__ import annotations

import logging

from cystore._native.record.message import Message, due_message
from cystore._native.record.properties import changed_properties
from cystore.consumers.names import dead_letter_topic, retry_topic
from cystore.engine.inspect.message_id import MessageId
from cystore.layout import BLANK_SIZE_MIN, CONSTANTS, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import DUE, SOURCE
from cystore.services.delay.timer import TIMER_QUEUE_ID

log = logging.getLogger("cystore")

FIRST_LEVEL = 3  # of a message that was consumed once
# Properties of the last delivery; and those of light queues, because a retry is in its group's topic alone.
NOT_COPIED = (SOURCE, DUE, "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]
DELIVERY_ROOM = CONSTANTS["DELAY_PROPERTY_ROOM"][0]  # bytes that the delivery of a waiting message adds


def times_in_group(message: Message, group: str) -> int:
    """How often a message came to this group again."""
    return message.reconsume_times if message.topic == retry_topic(group) else 0


def retry_of(
    message: Message,
    group: str,
    delay_level: int,
    max_reconsume_times: int,
    levels: int,
    file_bytes: int,
    due_ms: int | None = None,
) -> Message:
    """The record for the next consumption of a message, or its dead letter.

    `delay_level` 0 is 3 + reconsume_times; a negative level makes a dead letter at once. A level above the store's
    `levels` counts as the last one. With `due_ms` it waits until then instead.

    A message without room for the notes of a retry, in its properties or in a log file
    of `file_bytes`, becomes a dead letter, too.
    """
    times = times_in_group(message, group)
    if times < max_reconsume_times and delay_level >= 0:
        level = min(delay_level or FIRST_LEVEL + times, levels)
        topic = retry_topic(group)
        notes = _notes(message, level) | {"REAL_TOPIC": topic, "REAL_QID": "0"}
        queue_id = level - 1
        if due_ms is not None:
            del notes["DELAY"]
            notes[DUE], queue_id = str(due_ms), TIMER_QUEUE_ID
        changed = changed_properties(message.properties_bytes, notes, (*NOT_COPIED, "DELAY"))
        if _has_room(message, max(topic, SCHEDULE_TOPIC, key=len), len(changed) + DELIVERY_ROOM, file_bytes):
            return due_message(message, SCHEDULE_TOPIC, queue_id, changed, times + 1)
        log.warning("%s has no room for the notes of a retry: it becomes a dead letter of %s", message, group)
    changed = changed_properties(message.properties_bytes, _notes(message, 0), NOT_COPIED)
    if not _has_room(message, dead_letter_topic(group), len(changed), file_bytes):
        changed = changed_properties(message.properties_bytes, {}, NOT_COPIED)
    return due_message(message, dead_letter_topic(group), 0, changed, times + 1)


def _notes(message: Message, level: int) -> dict[str, str]:
    properties = message.properties
    notes = {"WAIT": "false", "DELAY": str(level)}
    if "RETRY_TOPIC" not in properties:
        notes["RETRY_TOPIC"] = message.topic
    if not properties.get("ORIGIN_MESSAGE_ID", "").strip():
        notes["ORIGIN_MESSAGE_ID"] = str(MessageId.of(message))
    return notes


def _has_room(message: Message, topic: str, properties_bytes: int, file_bytes: int) -> bool:
    """Whether a copy with this topic and so many bytes of properties is a record that a log file takes."""
    longer = len(topic) - len(message.topic) + properties_bytes - len(message.properties_bytes or b"")
    return (
        properties_bytes <= PROPERTIES_BYTES_MAX
        and message.size_bytes + longer + BLANK_SIZE_MIN <= file_bytes
    )
