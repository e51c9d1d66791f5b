"""The places and times of messages: the log in order, topics and queues, message ids, memory or disk, store
timestamps. Methods of MessageStore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cystore._native.record.argument_checks import any_text, whole, yes_or_no
from cystore._native.record.message import Message
from cystore.attachment.attachment import StoreHandle
from cystore.attachment.private_reads import scan
from cystore.derived.reading.by_key import DEFAULT_COUNT
from cystore.derived.reading.reader import FOREVER_MS, INT32_MAX
from cystore.engine.files.segments import Mode
from cystore.engine.inspect.message_id import MessageId, read_by_id
from cystore.engine.inspect.queue_offset import queue_offset_in
from cystore.engine.inspect.stats import QueueRange
from cystore.engine.log.ages import Ages
from cystore.filters.contains import Contains
from cystore.filters.given_filter import Filter, predicate
from cystore.surface.whole import WholeLog

if TYPE_CHECKING:
    from cystore.derived.reading.snapshot import LogSnapshot


class StorePlaces(StoreHandle):
    """The methods of `MessageStore` for the places of messages."""

    __slots__ = ()

    @property
    def whole(self) -> WholeLog:
        """Reads up to the log's end, where `get`, `query` and `scan` end at the confirmed position."""
        self._attached()  # raises for a closed store
        return WholeLog(self._attached)

    def read_by_id(self, message_id: MessageId | str) -> Message:
        """The record with RocketMQ's message id (viewMessage). Raises MessageIllegalError for text that is no message
        id; OffsetError if no record begins there, or if the record has another store host; CorruptRecordError."""
        return read_by_id(self._attached().commit_log, message_id)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: str = "nearest"
    ) -> int:
        """The queue offset for a store timestamp: the lowest with exactly that timestamp; else the nearer of the last
        earlier and the first later message, the earlier one on a tie. A time before all messages gives the minimum, a
        time after all of them the last message.

        With `boundary` "lower": the first message at or after the time, the queue's end if there is none; what is read
        from there on is not older than the time. "upper": the last message at or before it, the minimum if there is
        none (BoundaryType of RocketMQ 5)."""
        return self._attached().reader.offset_by_time(topic, queue_id, timestamp_ms, boundary=boundary)

    def scan(
        self, begin: int | None = None, end: int | None = None, *, filter: Filter | None = None
    ) -> Iterator[Message]:
        """Messages in physical order, from the record at `begin` to before `end`; reported holes are stepped over.
        Records that are cleaned meanwhile are left out, with a warning in the log. `filter` as for `get`; of records
        without the texts of a `Contains` the checksums are not compared, so such a scan is several times as fast.
        Raises OffsetError if `begin` is below the log's minimum, CorruptRecordError, FilterError."""
        if isinstance(filter, Contains):
            return scan(self._attached, begin, end, filter.program)
        wanted = None if filter is None else predicate(filter)
        messages = scan(self._attached, begin, end)
        return messages if wanted is None else (message for message in messages if wanted(message))

    def snapshot(self) -> LogSnapshot:
        """The log's present bounds, for readers beside the store; the log below its end does not change."""
        from cystore.derived.reading.snapshot import LogSnapshot

        parts = self._attached()
        parts.reader.help_dispatch()
        live = parts.mode is not Mode.PRIVATE
        store_id = parts.manifest.snapshot().store_id
        return LogSnapshot(
            self.path, parts.control, parts.commit_log, parts.queues, live=live, store_id=store_id
        )

    def topics(self) -> dict[str, dict[int, QueueRange]]:
        """Topics with their queues and the queue offsets that can be read. A queue that was removed is left out."""
        parts = self._attached()
        parts.reader.help_dispatch()
        found: dict[str, dict[int, QueueRange]] = {}
        removed = parts.manifest.snapshot().removed
        for slot in range(parts.control.queue_count):
            topic, queue_id, following, _, minimum = parts.control.queue(slot)
            if minimum < following or removed.end((topic, queue_id)) < following:
                found.setdefault(topic, {})[queue_id] = QueueRange(minimum, parts.reader.end_of(slot))
        return {topic: dict(sorted(queues.items())) for topic, queues in sorted(found.items())}

    def earliest_time_ms(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """The store timestamp of the first message of a queue that can be read; without a topic, of the log's first
        readable record. None if there is none (getEarliestMessageTime)."""
        parts = self._attached()
        if topic is not None:
            return parts.reader.earliest_time_ms(topic, queue_id)
        control = parts.control
        if control.wrote <= control.min_physical_offset:
            return None
        return Ages(control, parts.commit_log).at_or_behind_ms(control.min_physical_offset)

    def latest(self, topic: str, key: str, *, certain: bool = False) -> Message | None:
        """The newest message of a compacted topic with `key` among its keys, whether it is in the log or only in the
        compacted file. None if there is none, or if that message has an empty body (which deletes the key), has
        expired, or was deleted with its topic.

        If the keys of damaged records are unknown, one of these records may have been a newer message. Answers from
        below the log offset `compacted_uncertain_below` of `stats` may be outdated for that reason. With `certain`,
        such an answer is a CorruptRecordError.

        Unique keys do not count. Raises StoreConfigError for a topic that compacted_topics does not name,
        MessageIllegalError for a pattern of it, CorruptRecordError if the compacted file is missing, or too damaged to
        answer.
        """
        certain = yes_or_no("certain", certain)
        return self._attached().newest.latest(any_text("topic", topic), key, certain=certain)

    def compacted(self, topic: str) -> Iterator[Message]:
        """The newest message of each key of a compacted topic, in the order of the log. A message of several keys is
        given as long as it is the newest of one of them. Shows the state at the call. Needs about 50 bytes of memory a
        key. Raises StoreConfigError as `latest` does."""
        return self._attached().newest.all_of(any_text("topic", topic))

    def message_ids(self, topic: str, queue_id: int, begin: int, end: int) -> dict[str, int]:
        """RocketMQ's message ids of a queue's messages from queue offset `begin` to before `end`, and the queue offset
        of each (getMessageIds). Offsets that the queue does not have are left out. Each id names the store host of its
        own record; RocketMQ gives the host of its caller to all of them. Raises CorruptRecordError."""
        topic, queue_id = any_text("topic", topic), whole("queue_id", queue_id, 0, INT32_MAX)
        begin, end = (whole("queue_offset", offset, -FOREVER_MS, FOREVER_MS) for offset in (begin, end))
        reader, found = self._attached().reader, {}
        while begin < end:
            result = reader.get(topic, queue_id, begin, min(end - begin, DEFAULT_COUNT))
            for message in result.messages:
                queue_offset = queue_offset_in(message, topic, queue_id)
                if queue_offset < end:
                    found[str(MessageId.of(message))] = queue_offset
            if result.next_offset <= begin:
                break
            begin = result.next_offset
        return found

    def is_in_disk(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether `get` takes the limits for older segments at an offset: its message lies further behind the log's end
        than the share of memory that access_message_in_memory_max_ratio allows. False for an offset without a message
        (checkInDiskByConsumeOffset)."""
        return self._attached().reader.is_in_disk(topic, queue_id, queue_offset)
