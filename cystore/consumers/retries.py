"""The records that bring a message to its group again, and the dead letters
(SendMessageProcessor.asyncConsumerSendMsgBack).

A message that was not processed waits at a delay level for `%RETRY%group`, with one more in `reconsume_times`. After
`max_reconsume_times` it goes to `%DLQ%group`. Its properties name its first place: RETRY_TOPIC is its topic,
ORIGIN_MESSAGE_ID its message id in RocketMQ's spelling.

Each group counts for itself: a message that does not come from the group's own retry topic was not consumed again by
this group. RocketMQ counts over all groups, so a second group that reads a dead letter cannot retry it there.
"""

from __future__ import annotations

from cystore._native.record.message import Message, due_message
from cystore._native.record.properties import changed_properties
from cystore.consumers.names import dead_letter_topic, retry_topic
from cystore.engine.inspect.message_id import MessageId
from cystore.layout import SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import DUE, SOURCE

FIRST_LEVEL = 3  # of a message that was consumed once
# Properties of the last delivery; and those of light queues, because a retry is in its group's topic alone.
NOT_COPIED = (SOURCE, DUE, "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")


def times_in_group(message: Message, group: str) -> int:
    """How often a message came to this group again."""
    return message.reconsume_times if message.topic == retry_topic(group) else 0


def retry_of(
    message: Message, group: str, delay_level: int, max_reconsume_times: int, levels: int
) -> Message:
    """The record for the next consumption of a message, or its dead letter.

    `delay_level` 0 is 3 + reconsume_times; a negative level makes a dead letter at once. A level above the store's
    `levels` counts as the last one.
    """
    times = times_in_group(message, group)
    dead = times >= max_reconsume_times or delay_level < 0
    level = 0 if dead else min(delay_level or FIRST_LEVEL + times, levels)
    properties = message.properties
    notes = {"WAIT": "false", "DELAY": str(level)}
    if "RETRY_TOPIC" not in properties:
        notes["RETRY_TOPIC"] = message.topic
    if not properties.get("ORIGIN_MESSAGE_ID", "").strip():
        notes["ORIGIN_MESSAGE_ID"] = str(MessageId.of(message))
    topic, queue_id = (dead_letter_topic(group), 0) if dead else (SCHEDULE_TOPIC, level - 1)
    if not dead:
        notes |= {"REAL_TOPIC": retry_topic(group), "REAL_QID": "0"}
    changed = changed_properties(message.properties_bytes, notes, NOT_COPIED)
    return due_message(message, topic, queue_id, changed, times + 1)
