"""Messages that are put once, as a method of MessageStore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cystore._native.record.argument_checks import whole
from cystore._native.record.message import PutResult
from cystore.attachment.attachment import StoreHandle
from cystore.errors import MessageIllegalError

if TYPE_CHECKING:
    from cystore.once.puts import PutOnce


class StoreOnce(StoreHandle):
    """The part of a `MessageStore` that puts messages once. Its modules are imported at their first use."""

    __slots__ = ()

    def put_once(
        self,
        topic: str,
        body: Any,
        *,
        dedup_key: str,
        window_ms: int,
        queue_id: int = 0,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        flush: str | None = None,
        busy_timeout_ms: int | None = None,
        expires_at_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> PutOnce:
        """`put`, unless the topic got a message with this `dedup_key` within the last `window_ms`: then nothing is put.
        Gives the message's place, and whether this call made it.

        The key is the message's unique key, so `query` finds it, and a message that was put with ``unique_key=`` counts
        too. This holds for all processes and threads, and after a kill: if a caller does not know whether its put
        succeeded, it repeats the call. With sync flush the answer comes when the message is durable, also if another
        call put it. A message that waits for its delivery counts as long as it waits, whatever the window. A message
        that readers do not get does not count: it expired, was cancelled, cleaned or damaged, or its topic was deleted.

        Raises StoreTimeoutError when another process has been putting the same key for busy_timeout_ms,
        StoreConfigError for a store without an index (message_index_enable), and the errors of `put`.
        """
        from cystore.once.puts import put_once

        return put_once(
            self, topic, body, dedup_key, window_ms, flush=flush, busy_timeout_ms=busy_timeout_ms,
            put={"queue_id": queue_id, "keys": keys, "tags": tags, "properties": properties, "flag": flag,
                 "expires_at_ms": expires_at_ms, "deliver_at_ms": deliver_at_ms, "delay_ms": delay_ms},
        )  # fmt: skip

    def _put_with_key(self, topic: str, body: Any, dedup_key: str, given: dict[str, Any]) -> PutResult:
        """`put` with a `dedup_key`."""
        level, unique_key = given.pop("delay_level"), given.pop("unique_key")
        if whole("delay_level", level, 0) or unique_key is not None:
            raise MessageIllegalError("dedup_key: goes with neither unique_key nor delay_level")
        window_ms = self._writable().config.dedup_window_ms
        return self.put_once(topic, body, dedup_key=dedup_key, window_ms=window_ms, **given).place
