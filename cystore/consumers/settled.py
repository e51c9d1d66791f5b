"""The records of the log that settle messages of a queue of a group. There are two kinds.

A record in the topic ``%ACK%group`` says nothing else: ranges of queue offsets. Any other record may settle one message
besides what it says itself: so the result of a task and the end of its message are one record, of which a kill or a
power cut leaves all or nothing. Its property `SETTLES` has the queue offset, and it stands in a light queue of the
claimed queue, too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from cystore._native.memory.control import WROTE
from cystore._native.record.message import Message
from cystore.attachment.attachment import StoreHandle
from cystore.errors import CorruptRecordError
from cystore.layout import LMQ_PREFIX
from cystore.layout.record import LIGHT, SETTLES

ACK_PREFIX = "%ACK%"
SETTLED_AT_ONCE = 1024  # ranges in one record
READ_AT_ONCE = 256
_RANGE = struct.Struct("<qq")

Range = tuple[int, int]


def ack_topic(group: str) -> str:
    """The topic of the records of settled messages."""
    return ACK_PREFIX + group


def ranges_of(message: Message) -> Iterator[Range]:
    """The ranges of queue offsets in a record of the topic of settled messages."""
    return _RANGE.iter_unpack(bytes(message.body))


class SettledLog:
    """The records that settle messages of one queue of a group. They count up to the end of the log, also where the
    master is elected: if a failover takes one back, it takes back all later ones, too."""

    def __init__(self, store: StoreHandle, group: str, topic: str, queue_id: int) -> None:
        self._store, self._topic, self._tag = store, ack_topic(group), f"{topic}/{queue_id}"
        self.key = f"{group}\0{topic}\0{queue_id}".encode()
        self.name = hashlib.sha256(self.key).hexdigest()[:32]
        self._light = f"{LMQ_PREFIX}settled-{self.name}"

    def note(self, ranges: Sequence[Range], flush: str | None) -> None:
        """Appends that ranges are settled."""
        messages = [
            Message(
                topic=self._topic,
                body=b"".join(_RANGE.pack(*one) for one in ranges[at : at + SETTLED_AT_ONCE]),
                tags=self._tag,
                queue_id=0,
            )
            for at in range(0, len(ranges), SETTLED_AT_ONCE)
        ]
        if messages:
            self._store.put_many(messages, flush=flush)

    def properties(self, queue_offset: int) -> dict[str, str] | None:
        """With these any other record settles a message. None if the store takes no messages into light queues, or has
        no room for one more."""
        settings, parts = self._store.settings, self._store._attached()
        if not (settings.enable_lmq and settings.enable_multi_dispatch):
            return None
        if parts.control.find_queue(self._light, 0) < 0:
            most = min(settings.max_lmq_consume_queue_num, settings.max_queues // 2)
            if parts.control.queue_count >= most:
                return None
        return {LIGHT: self._light, SETTLES: str(queue_offset)}

    def ranges(self, physical_offset: int) -> Iterator[Range]:
        """The ranges that the records from a place of the log on settle."""
        for message in self._records(self._topic, physical_offset, self._tag):
            if message.tags == self._tag:
                yield from ranges_of(message)
        for queue_offset in self._others(physical_offset):
            yield queue_offset, queue_offset + 1

    def is_settled_since(self, queue_offset: int, physical_offset: int) -> bool:
        """Whether one of the other records from a place of the log on settles a message."""
        return queue_offset in self._others(physical_offset)

    def _others(self, physical_offset: int) -> Iterator[int]:
        for message in self._records(self._light, physical_offset, None):
            if (text := message.properties.get(SETTLES, "")).isdecimal():
                yield int(text)

    def _records(self, topic: str, physical_offset: int, tags: str | None) -> Iterator[Message]:
        """The records of a topic that stand in the log from a place on, but not those that are damaged."""
        reader = self._store._attached().reader
        at, count = self._first(topic, physical_offset), READ_AT_ONCE
        while True:
            try:
                found = reader.get(topic, 0, at, count, tags=tags, read_end=WROTE)
            except CorruptRecordError:
                at, count = (at, 1) if count > 1 else (at + 1, READ_AT_ONCE)
                continue
            yield from found.messages
            if found.next_offset <= at:
                return
            at, count = found.next_offset, READ_AT_ONCE

    def _first(self, topic: str, physical_offset: int) -> int:
        """The queue offset of the first of them: a queue has the order of the log."""
        parts = self._store._attached()
        slot = parts.control.find_queue(topic, 0)
        if slot < 0:
            return 0
        parts.reader.help_dispatch()
        low, high = parts.control.queue_minimum(slot), parts.reader.shown_end(slot)
        while low < high:
            middle = (low + high) // 2
            try:
                found = self._store.get(topic, 0, middle, 1).messages
            except CorruptRecordError:
                found = []
            if found and (found[0].physical_offset or 0) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low
