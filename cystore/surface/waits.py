"""Waits for messages, for the log and for keys, as methods of MessageStore; and the positions that they wait for."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from cystore._native.record.argument_checks import WHOLE_MAX, any_text, function, text, whole
from cystore.attachment.attachment import StoreHandle
from cystore.clock import monotonic_s, wait_s
from cystore.derived.reading.reader import FOREVER_MS, INT32_MAX
from cystore.engine.log.commit_log import check_offset
from cystore.errors import StoreConfigError

WAIT_SLICE_S = 0.25
KEY_SLICE_S = 1.0  # a handle notices within this time that its directory was moved or replaced
WAKE_LOOK_MS = 20  # a wake looks at the store's place itself after this time without another look
# A number of `key_seen`: the key's word, and above it how often the handle followed its path.
FOLLOWED_SHIFT = 32
WORD_MAX = (1 << FOLLOWED_SHIFT) - 1


class StoreWaits(StoreHandle):
    """The methods of `MessageStore` that sleep until a message, an append or a key comes. None of them polls."""

    __slots__ = ()

    def wait(self, topic: str, queue_id: int, queue_offset: int, timeout_s: float | None = None) -> bool:
        """Sleeps until the message at `queue_offset` can be read: True; False after `timeout_s`. It does not poll: an
        append in any process wakes it."""
        until = monotonic_s() + wait_s(timeout_s)
        name = any_text("topic", topic)
        queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
        queue_offset = whole("queue_offset", queue_offset, -FOREVER_MS, FOREVER_MS)
        while True:
            parts = self._attached()
            control, seen = parts.control, parts.control.append_seq
            slot = control.find_queue(name, queue_id)
            # Before the message is appended, a dispatch would only give this reader the work for other topics.
            appended = slot >= 0 and control.queue_end(slot) > queue_offset
            if appended:
                parts.reader.help_dispatch()
                if parts.reader.end_of(slot) > queue_offset:
                    return True
            left_s = min(WAIT_SLICE_S, until - monotonic_s())
            if left_s <= 0:
                return False
            left_ms = max(1, int(left_s * 1000))
            if slot < 0 or appended or control.read_only:
                control.wait_append(seen, left_ms)
            else:
                control.wait_queue(slot, queue_offset, left_ms)  # appends to other queues do not wake it

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next append to a queue, dispatched or not: every earlier message has a lower one. 0
        for an unknown queue. Costs almost nothing: no dispatch, no wait."""
        name, queue_id = any_text("topic", topic), whole("queue_id", queue_id, 0, INT32_MAX)
        control = self._attached().control
        slot = control.find_queue(name, queue_id)
        return control.queue_end(slot) if slot >= 0 else 0

    @property
    def wrote_position(self) -> int:
        """The physical offset behind the last record (or blank) that reads show. The next append begins there; where
        the master is elected, it may begin later, because reads end at the confirmed position."""
        return self._attached().reader.log_end

    def catch_up(self) -> int:
        """Helps to dispatch, as every read does, and returns the log position below which `get` and `query` see
        everything.

        If another dispatcher stands still, that position is less than the wrote position. A read-only handle may not
        dispatch, but sees all acknowledged messages.
        """
        parts = self._attached()
        parts.reader.help_dispatch()
        return parts.reader.covered

    def wait_log(self, physical_offset: int, timeout_s: float | None = None) -> bool:
        """Sleeps until the wrote position is beyond `physical_offset`: True; False after `timeout_s`.

        Give it the wrote position of an earlier look, and no append is missed: after a later append the call returns at
        once. `scan` finds the records, dispatched or not.
        """
        until = monotonic_s() + wait_s(timeout_s)
        physical_offset = check_offset(physical_offset)
        while True:
            parts = self._attached()
            control, seen = parts.control, parts.control.append_seq
            if parts.reader.log_end > physical_offset:
                return True
            left_s = min(WAIT_SLICE_S, until - monotonic_s())
            if left_s <= 0:
                return False
            control.wait_append(seen, max(1, int(left_s * 1000)))

    def ring_at_append(self, ring: Callable[[], None]) -> bool:
        """Lets a thread of this store call `ring` once, with the next append of any process; sometimes earlier. False
        if no thread of this handle sleeps until an append, because an append came a moment ago, or because the handle
        runs no services. Then look again after a while. Register first, then look, then sleep: so no append is
        missed."""
        return self._attached().sleepers.ring(function("ring", ring, StoreConfigError), watches=False)

    def key_seen(self, key: str) -> int:
        """A number that changes with each `wake_key` for a key. For `wait_key`: read it first, then look, then wait."""
        parts = self._attached()
        return parts.control.key_seq(_hash(key)) | parts.followed << FOLLOWED_SHIFT

    def wait_key(self, key: str, seen: int, timeout_s: float | None = None) -> bool:
        """Sleeps until `key_seen` of a key is not `seen` any more: True; False after `timeout_s`. A few other keys wake
        it too; so does another directory that the handle followed its path to."""
        until, number = monotonic_s() + wait_s(timeout_s), _hash(key)
        seen = whole("seen", seen, -WHOLE_MAX)
        while True:
            parts = self._attached()
            control = parts.control
            if control.key_seq(number) | parts.followed << FOLLOWED_SHIFT != seen:
                return True
            left_s = min(WAIT_SLICE_S if control.read_only else KEY_SLICE_S, until - monotonic_s())
            if left_s <= 0:
                return False
            control.wait_key(number, seen & WORD_MAX, max(1, int(left_s * 1000)))

    def wake_key(self, key: str) -> None:
        """Wakes the waiters for a key. An append does not do so by itself: call this after a put that others wait
        for."""
        parts = self._attached()
        if parts.appender is None or parts.control.place_age_ms >= WAKE_LOOK_MS:
            parts = self._writable()
            parts.control.place_seen()
        parts.control.wake_key(_hash(key))


def _hash(key: str) -> int:
    return zlib.crc32(text("key", key).encode())
