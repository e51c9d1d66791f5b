"""Puts a message unless one with its key is there: looks and puts under a lock of the key, which all processes share.

The lock is a byte lock of config/once.lock, which the kernel ends with its owner. A kill behind the append leaves the
message, and the next call finds it; a kill before it leaves nothing.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

from cystore import clock
from cystore._native.memory.control import WROTE
from cystore._native.record.argument_checks import choice, text, whole
from cystore._native.record.message import PutResult, place_of
from cystore._native.system.failpoint import failpoint
from cystore.attachment.attachment import Attachment, StoreHandle
from cystore.derived.reading.reader import INT32_MAX
from cystore.engine.log.append_policy import FLUSH_REPLICATED, FLUSH_SYNC
from cystore.errors import MessageIllegalError, StoreConfigError, StoreError
from cystore.ha.role import role_of
from cystore.layout import refuse_own_topic
from cystore.system.key_lock import NameLocks
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed

NAME = "once.lock"
WINDOW_MAX_MS = 1 << 50
FLUSHES = {"async": 0, "sync": FLUSH_SYNC, "replicated": FLUSH_REPLICATED}


class PutOnce(NamedTuple):
    """The place of a message, and whether this call put it: False when an earlier one had."""

    place: PutResult
    is_new: bool


def put_once(
    store: StoreHandle,
    topic: str,
    body: Any,
    dedup_key: str,
    window_ms: int,
    *,
    flush: str | None,
    busy_timeout_ms: int | None,
    put: dict[str, Any],
) -> PutOnce:
    """See MessageStore.put_once."""
    topic = text("topic", topic, MessageIllegalError)
    refuse_own_topic(topic)
    key = text("dedup_key", dedup_key, MessageIllegalError)
    if not key:
        raise MessageIllegalError("dedup_key: must not be empty")
    window_ms = whole("window_ms", window_ms, 1, WINDOW_MAX_MS, MessageIllegalError)
    if busy_timeout_ms is not None:
        busy_timeout_ms = whole("busy_timeout_ms", busy_timeout_ms, 0, INT32_MAX, MessageIllegalError)
    flush = choice("flush", flush, (None, *FLUSHES))
    parts = store._writable()
    if not parts.config.message_index_enable:
        raise StoreConfigError(
            "this store has no index (message_index_enable), so it cannot find messages by their dedup_key",
            path=parts.root,
        )
    wait_ms = parts.config.os_page_cache_busy_timeout_ms if busy_timeout_ms is None else busy_timeout_ms
    with _locks(parts).held(f"{topic} {key}", wait_ms / 1000):
        known = _known(parts, topic, key, window_ms)
        if known is None:
            result = store.put(
                topic, body, unique_key=key, flush="async", busy_timeout_ms=busy_timeout_ms, **put
            )
            failpoint("once.put")
        else:
            result = known
    _reach(parts, result, flush)
    return PutOnce(result, known is None)


def _known(parts: Attachment, topic: str, key: str, window_ms: int) -> PutResult | None:
    """The message with the key that waits for its delivery, or the oldest one of the window that readers of the topic
    get. A store timestamp ahead of the clock is inside of every window. An unconfirmed message counts: readers get it
    soon."""
    parts.control.commit()
    waiting = parts.withdrawals.waiting_once(topic, key)  # first: what leaves meanwhile is in the topic then
    if waiting is not None:
        return place_of(waiting)
    begin_ms = max(clock.now_ms(parts.control) - window_ms, 0)
    reader = parts.reader
    for message in reversed(reader.query(topic, key, INT32_MAX, begin_ms=begin_ms, read_end=WROTE)):
        if message.unique_key == key and reader.sees(message, read_end=WROTE):
            return place_of(message)
    return None


def _reach(parts: Attachment, result: PutResult, flush: str | None) -> None:
    """Waits as `put` does: also for a message that another call put without waiting."""
    wanted = FLUSHES[flush or "async"]
    if parts.config.flush_disk_type == "sync" and flush != "async":
        wanted |= FLUSH_SYNC
    if flush is None and role_of(parts.manifest.snapshot()).broker_role == "sync_master":
        wanted |= FLUSH_REPLICATED
    if not wanted or parts.appender is None:
        return
    try:
        parts.appender.policy.reach(result.physical_offset + result.size_bytes, wanted)
    except StoreError as error:
        error.results = [result]
        raise


_making = os_threads.RLock()  # a signal handler of the same thread makes them, too


def _locks(parts: Attachment) -> NameLocks:
    """The locks of an attachment, made at their first use."""
    found = parts.once
    if found is None:
        found = undisturbed(partial(_make_locks, parts))
    assert isinstance(found, NameLocks)
    return found


def _make_locks(parts: Attachment) -> object:
    with _making:
        if parts.once is None:
            made = NameLocks(parts.root / "config" / NAME)
            parts.at_leave.append(made.close)
            parts.once = made
        return parts.once


def _forked() -> None:
    global _making
    _making = os_threads.RLock()  # whoever held it is in the parent


os.register_at_fork(after_in_child=_forked)
