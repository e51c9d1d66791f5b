"""Messages that wait until a time of their own: `cancel`, `reschedule`, `pending`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cystore import clock
from cystore._native.record.argument_checks import any_text, choice, whole
from cystore._native.record.message import Message, PutResult, encode_host
from cystore.attachment.attachment import StoreHandle
from cystore.errors import MessageIllegalError
from cystore.layout import refuse_own_topic
from cystore.services.delay.recurring import (
    EVERY_MS_LEAST,
    FOR_EVER,
    MISSED,
    Every,
    due_time_of,
    waiting_of,
)
from cystore.services.delay.withdraw import DelayedMessage

TIME_MAX_MS = 99_999_999_999_999_999


class StoreTimed(StoreHandle):
    """The part of a `MessageStore` about messages that were put with `deliver_at_ms` or `delay_ms`."""

    __slots__ = ()

    def cancel(
        self, topic: str | None = None, key: str | None = None, *, physical_offset: int | None = None
    ) -> bool:
        """Withdraws the messages of `topic` with `key` among their keys that still wait until a time of their own; or
        the one whose record begins at `physical_offset`. True if there was one: it will never be delivered. Of a
        delivery and a cancellation at the same time exactly one happens.

        Messages with a delay level are not looked at. Raises MessageIllegalError, OffsetError, StoreTimeoutError when
        another process delivers for more than ten seconds, and the errors of `put`.
        """
        if physical_offset is not None:
            _neither(topic, key)
            place = whole("physical_offset", physical_offset, 0)
            return self._writable().withdrawals.cancel_at(place) > 0
        topic, key = _topic_and_key(topic, key)
        return self._writable().withdrawals.cancel(topic, key) > 0

    def reschedule(
        self,
        topic: str | None = None,
        key: str | None = None,
        deliver_at_ms: int | None = None,
        *,
        physical_offset: int | None = None,
    ) -> bool:
        """Gives the messages that `cancel` would withdraw another due time, ms since the epoch; a time that is over
        makes them due at once. True if there was one. Raises the errors of `cancel`."""
        if deliver_at_ms is None:
            raise MessageIllegalError("deliver_at_ms: give the new due time, ms since the epoch")
        due_ms = whole("deliver_at_ms", deliver_at_ms, 1, TIME_MAX_MS)
        if physical_offset is not None:
            _neither(topic, key)
            place = whole("physical_offset", physical_offset, 0)
            return self._writable().withdrawals.reschedule_at(place, due_ms) > 0
        topic, key = _topic_and_key(topic, key)
        return self._writable().withdrawals.reschedule(topic, key, due_ms) > 0

    def pending(
        self, topic: str | None = None, begin_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[DelayedMessage]:
        """The messages for `topic` (default: for any) that wait until a time of their own in [begin_ms, end_ms), in the
        order of due times. It reads while it is iterated, so it gives no message that has left by then. Messages with a
        delay level are not among them (`stats`)."""
        topic = None if topic is None else any_text("topic", topic)
        begin_ms = whole("begin_ms", begin_ms, 0)
        end_ms = TIME_MAX_MS + 1 if end_ms is None else whole("end_ms", end_ms, 0)
        return self._attached().withdrawals.pending(topic, begin_ms, end_ms)

    def _put_every(
        self,
        topic: str,
        body: Any,
        every_ms: int | None,
        missed: str,
        until_ms: int | None,
        dedup_key: str | None,
        given: dict[str, Any],
    ) -> PutResult:
        """`put` of a message that comes again."""
        if every_ms is None:
            raise MessageIllegalError("until_ms: goes with every_ms")
        parts = self._writable()
        now_ms, most_ms = clock.now_ms(parts.control), parts.config.timer_max_delay_s * 1000
        every_ms = whole("every_ms", every_ms, EVERY_MS_LEAST, most_ms, MessageIllegalError)
        missed = choice("missed", missed, MISSED)
        level, busy_ms, flush = (given.pop(name) for name in ("delay_level", "busy_timeout_ms", "flush"))
        if whole("delay_level", level, 0) or dedup_key is not None or given["expires_at_ms"] is not None:
            raise MessageIllegalError(
                "every_ms: goes with neither delay_level nor dedup_key nor expires_at_ms"
            )
        if busy_ms is not None:
            raise MessageIllegalError("every_ms: goes without busy_timeout_ms")
        message = Message(topic=topic, body=body, **given)
        due_ms = due_time_of(given["deliver_at_ms"], given["delay_ms"], now_ms, most_ms)
        due_ms = now_ms + every_ms if due_ms is None else due_ms
        if until_ms is not None and whole("until_ms", until_ms, 1, TIME_MAX_MS) < due_ms:
            raise MessageIllegalError("until_ms: is before the first time")
        refuse_own_topic(message.topic or "")
        every = Every(every_ms, missed, FOR_EVER if until_ms is None else until_ms)
        host = encode_host(parts.config.store_host, "store_host")
        record = waiting_of(message, every, due_ms, host, parts.commit_log.file_bytes)
        (put,) = self.put_many([record], flush=flush)
        return put


def _topic_and_key(topic: str | None, key: str | None) -> tuple[str, str]:
    if topic is None or key is None:
        raise MessageIllegalError("give a topic and a key, or a physical_offset")
    topic, key = any_text("topic", topic), any_text("key", key)
    if not topic or not key:
        raise MessageIllegalError(f"{'key' if topic else 'topic'}: must not be empty")
    return topic, key


def _neither(topic: str | None, key: str | None) -> None:
    if topic is not None or key is not None:
        raise MessageIllegalError("physical_offset: goes with neither topic nor key")
