"""A message's queue offset in one of its queues: its own one, or a light one."""

from __future__ import annotations

from cystore._native.record.message import Message
from cystore._native.record.properties import queues_of


def queue_offset_in(message: Message, topic: str, queue_id: int) -> int:
    """The queue offset of a stored message in a queue that it was read from."""
    if message.queue_id == queue_id and message.topic == topic:
        return message.queue_offset or 0
    for name, number, queue_offset in queues_of(message):
        if (name, number) == (topic, queue_id):
            return queue_offset
    raise ValueError(f"{message!r} is not in {topic}/{queue_id}")
