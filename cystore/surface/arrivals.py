"""Dispatchers, listeners and asyncio's waits of a store, as methods of MessageStore."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from cystore._native.record.argument_checks import any_text, whole
from cystore.attachment.attachment import StoreHandle
from cystore.attachment.interrupted_close import weakly
from cystore.errors import StoreConfigError

if TYPE_CHECKING:
    from cystore.arrivals.aio import AsyncStore
    from cystore.arrivals.dispatchers import Dispatchers
    from cystore.arrivals.listeners import ArrivingListener
    from cystore.arrivals.queue_watch import QueueWatch


class StoreArrivals(StoreHandle):
    """The methods of `MessageStore` for messages as they come. Its modules are imported at their first use."""

    __slots__ = ()

    @property
    def dispatchers(self) -> Dispatchers:
        """The named dispatchers of the store: functions that get every record of the log, at least once."""
        from cystore.arrivals.dispatchers import Dispatchers

        self._attached()  # raises StoreClosedError
        return Dispatchers(self)

    def listen(
        self, topic: str, function: Callable[[str, int, int], object], *, queue_id: int | None = None
    ) -> ArrivingListener:
        """Calls `function(topic, queue_id, end)` when new messages of a queue, or of any queue of a topic, can be read:
        all below the queue offset `end`. One call may stand for several messages. `close` of the returned listener ends
        it.

        Best effort: the function is not called for earlier messages, nor after the process has ended. The function runs
        in a thread that all listeners of this object share; its errors are logged. Source:
        MessageArrivingListener.arriving.
        """
        from cystore.arrivals.listeners import ArrivingListener
        from cystore.arrivals.user_calls import checked_function

        name = any_text("topic", topic, StoreConfigError)
        if queue_id is not None:
            queue_id = whole("queue_id", queue_id, 0, (1 << 31) - 1, StoreConfigError)
        checked_function(function, f"a listener of {name}")
        return ArrivingListener(self._watch("listeners"), name, queue_id, function)

    @property
    def aio(self) -> AsyncStore:
        """`wait`, `get` and `tail` for asyncio."""
        from cystore.arrivals.aio import AsyncStore

        return AsyncStore(self, self._watch("aio"))

    def _watch(self, name: str) -> QueueWatch:
        """The watch of this process for listeners, or the one for asyncio. They are two, because a listener's function
        must not delay event loops."""
        from cystore.arrivals.queue_watch import QueueWatch

        self._attached()  # raises StoreClosedError
        watches: dict[str, QueueWatch] = self.__dict__.setdefault("_watches", {})
        found = watches.get(name)
        if found is None or found.pid != os.getpid():
            found = watches[name] = QueueWatch(weakly(self, type(self)._attached), name)
        return found
