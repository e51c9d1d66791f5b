"""Waits and reads for asyncio: nothing blocks the event loop, and many waiters share one thread.

A wait is a future of its own event loop, and an entry of the store's watch; the end of the wait removes the entry.
Reads run in the loop's default executor, because a read may wait for a disk, or for another process that dispatches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from cystore._native.lookup.get_result import GetResult
from cystore._native.record.argument_checks import any_text, choice, whole, yes_or_no
from cystore._native.record.message import Message
from cystore.arrivals.queue_watch import QueueWatch, Watched
from cystore.attachment.attachment import StoreHandle
from cystore.clock import FOREVER_S, monotonic_s, wait_s
from cystore.derived.reading.reader import FOREVER_MS, INT32_MAX
from cystore.engine.inspect.queue_offset import queue_offset_in
from cystore.errors import CorruptRecordError, StoreClosedError, StoreConfigError, StoreError, StoreMovedError
from cystore.filters.given_filter import Filter
from cystore.results import GetStatus
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

FIRST, LAST = "first", "last"
T = TypeVar("T")


class _Bell:
    """A bell that the watching thread rings and that one event loop hears."""

    def __init__(self, watch: QueueWatch, topic: str, queue_id: int | None) -> None:
        self._watch = watch
        self._loop, self._heard = asyncio.get_running_loop(), asyncio.Event()
        self._error: StoreError | None = None
        self.entry = Watched(topic, queue_id, self._arrived, self._ended)

    def _arrived(self, queue_id: int, end: int) -> None:
        self._ring()

    def _ended(self, error: StoreError) -> None:
        self._error = error
        self._ring()

    def _ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._heard.set)
        except RuntimeError:  # the loop is closed: no task waits any more
            self._watch.remove(self.entry)

    def clear(self) -> None:
        """Forgets earlier rings."""
        if isinstance(self._error, StoreMovedError):
            self._error = None  # the directory may be back
        self._heard.clear()

    async def hear(self, timeout_s: float) -> bool:
        """Waits for a ring: True; False after `timeout_s`. Raises StoreClosedError when the store is closed,
        StoreMovedError while its directory is away."""
        try:
            async with asyncio.timeout(None if timeout_s >= FOREVER_S else timeout_s):
                await self._heard.wait()
        except TimeoutError:
            return False
        if isinstance(self._error, StoreMovedError):
            raise self._error
        if self._error is not None:
            raise StoreClosedError(str(self._error)) from self._error
        return True


class AsyncStore:
    """The waits and reads of a store for asyncio; `store.aio`. Any number of event loops and tasks may use it.

    A task that is cancelled leaves nothing behind. When the store is closed, every wait raises StoreClosedError.
    """

    def __init__(self, store: StoreHandle, watch: QueueWatch) -> None:
        self._store, self._watch = store, watch

    async def wait(
        self, topic: str, queue_id: int, queue_offset: int, timeout_s: float | None = None
    ) -> bool:
        """`MessageStore.wait`: sleeps until the message at `queue_offset` can be read: True; False after
        `timeout_s`."""
        until_s = monotonic_s() + wait_s(timeout_s)
        name = any_text("topic", topic)
        queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
        queue_offset = whole("queue_offset", queue_offset, -FOREVER_MS, FOREVER_MS)
        with self._watching(name, queue_id, queue_offset) as bell:
            while not await self._can_read(name, queue_id, queue_offset):
                left_s = until_s - monotonic_s()
                if left_s <= 0:
                    return False
                bell.clear()
                if not await bell.hear(left_s):
                    return False
        return True

    async def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int = 32,
        *,
        timeout_s: float | None = 0.0,
        tags: str | None = None,
        filter: Filter | None = None,
        group: str | None = None,
        raw: bool = False,
    ) -> GetResult:
        """`MessageStore.get`, which waits up to `timeout_s` for a message at `queue_offset` (None: for ever). It does
        not wait for a message that matches `tags` or `filter`: `next_offset` of a result without messages is the offset
        to continue at. Raises the errors of `get`."""
        wait_s(timeout_s)  # raises for a value that is not a time
        raw = yes_or_no("raw", raw)
        if timeout_s is None or timeout_s > 0:
            await self.wait(topic, queue_id, queue_offset, timeout_s)
        read = partial(
            self._store.get, topic, queue_id, queue_offset, max_count, tags=tags, filter=filter, group=group, raw=raw,
        )  # fmt: skip
        result = await self._in_thread(read)
        if not raw and result.messages:  # the task may come to its turn late
            result.messages = [one for one in result.messages if self._sees(topic, queue_id, one)]
            if not result.messages:
                result.status = GetStatus.NO_MATCHED_MESSAGE
        return result

    async def tail(
        self,
        topic: str,
        queue_id: int | None = None,
        *,
        begin: str | int = LAST,
        tags: str | None = None,
        filter: Filter | None = None,
    ) -> AsyncIterator[Message]:
        """Messages of a queue, or of all queues of a topic, as they come, without an end; in the order of each queue.

        `begin`: behind the "last" message of each queue now, at its "first" one, or at a queue offset of a single
        queue. Queues that come later are read from their first message. Damaged messages are stepped over, with an
        error in the log; an offset outside of a queue continues where RocketMQ does. If the store follows its path to
        another directory, the tail continues there with the messages that were stored after the last one that it gave.
        Raises StoreClosedError, StoreMovedError, FilterError, StoreConfigError.
        """
        name = any_text("topic", topic)
        if queue_id is not None:
            queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
        if isinstance(begin, str):
            begin = choice("begin", begin, (FIRST, LAST), StoreConfigError)
        else:
            if queue_id is None:
                raise StoreConfigError("begin: a queue offset needs a queue_id")
            begin = whole("begin", begin, 0, FOREVER_MS, StoreConfigError)
        with self._watching(name, queue_id, None) as bell:
            offsets: dict[int, int] = {}
            followed, seen_ms = self._store.followed, 0
            if begin == LAST:
                seen_ms = self._store._attached().control.last_store_timestamp_ms
                offsets = await self._in_thread(partial(self._ends, name, self._queues(name, queue_id)))
            if queue_id is not None and isinstance(begin, int):
                offsets[queue_id] = begin
            get = partial(self._store.get, tags=tags, filter=filter)
            while True:
                bell.clear()
                moved, numbers = False, self._queues(name, queue_id)
                if followed != self._store.followed:
                    followed = self._store.followed
                    offsets = await self._in_thread(partial(self._later, name, numbers, seen_ms))
                for number in numbers:
                    at = offsets.get(number, 0)
                    messages, offsets[number] = await self._in_thread(partial(_read, get, name, number, at))
                    moved = moved or offsets[number] != at
                    for message in messages:
                        seen_ms = max(seen_ms, message.store_timestamp_ms or 0)
                        if self._sees(name, number, message):
                            yield message
                if not moved:
                    await bell.hear(FOREVER_S)

    @contextmanager
    def _watching(self, topic: str, queue_id: int | None, queue_offset: int | None) -> Iterator[_Bell]:
        bell = _Bell(self._watch, topic, queue_id)
        self._watch.add(bell.entry, from_end=queue_offset)
        try:
            yield bell
        finally:
            self._watch.remove(bell.entry)

    async def _can_read(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether a message can be read now. If it is appended and not dispatched, a thread helps to dispatch."""
        parts = self._store._attached()
        slot = parts.control.find_queue(topic, queue_id)
        if slot < 0 or parts.control.queue_end(slot) <= queue_offset:
            return False
        if parts.reader.end_of(slot) <= queue_offset:
            await self._in_thread(parts.reader.help_dispatch)
        return parts.reader.end_of(slot) > queue_offset

    def _sees(self, topic: str, queue_id: int, message: Message) -> bool:
        """Whether readers of a queue get a message of it that was read a while ago."""
        parts = self._store._attached()
        slot = parts.control.find_queue(topic, queue_id)
        return slot >= 0 and parts.reader.sees(message, slot, queue_offset_in(message, topic, queue_id))

    def _ends(self, topic: str, queue_ids: list[int]) -> dict[int, int]:
        """For each queue the offset behind the last message that a reader gets without another append."""
        parts = self._store._attached()
        shown_end = parts.reader.shown_ends()
        slots = {number: parts.control.find_queue(topic, number) for number in queue_ids}
        return {number: shown_end(slot) if slot >= 0 else 0 for number, slot in slots.items()}

    def _later(self, topic: str, queue_ids: list[int], seen_ms: int) -> dict[int, int]:
        """For each queue the offset of the first message that was stored after `seen_ms`."""
        by_time = partial(self._store.offset_by_time, topic, boundary="lower")
        return {number: by_time(number, seen_ms + 1) for number in queue_ids}

    def _queues(self, topic: str, queue_id: int | None) -> list[int]:
        if queue_id is not None:
            return [queue_id]
        return self._watch.queues(topic)

    @staticmethod
    async def _in_thread(call: Callable[[], T]) -> T:
        try:
            future = asyncio.get_running_loop().run_in_executor(None, call)
        except (RuntimeError, MemoryError) as error:  # no room for a thread, or the loop's threads have ended
            raise os_threads.no_thread("of asyncio", error) from error
        return await future


def _read(get: Callable[..., GetResult], topic: str, queue_id: int, at: int) -> tuple[Any, int]:
    """(messages, the offset to continue at) of one read."""
    try:
        result = get(topic, queue_id, at)
    except CorruptRecordError:
        log.exception("the damaged message %d of %s/%d is stepped over", at, topic, queue_id)
        return (), at + 1
    if result.status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
        return (), at
    return result.messages, result.next_offset
