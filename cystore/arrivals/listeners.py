"""Listeners of arriving messages (MessageArrivingListener)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType

from cystore.arrivals.queue_watch import QueueWatch, Watched
from cystore.arrivals.user_calls import call
from cystore.errors import StoreError
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")


class ArrivingListener:
    """A listener, made by `store.listen`; it listens until `close`, or until the store is closed."""

    def __init__(
        self, watch: QueueWatch, topic: str, queue_id: int | None, function: Callable[[str, int, int], object]
    ) -> None:
        self._watch, self._function, self._trouble = watch, function, Trouble()
        self._entry = Watched(topic, queue_id, self._call, partial(_ended, topic))
        watch.add(self._entry)

    def _call(self, queue_id: int, end: int) -> None:
        topic = self._entry.topic
        try:
            call(self._function, topic, queue_id, end)
        except BaseException as error:  # noqa: BLE001 - whatever it raises is the program's, and this thread tells it
            self._trouble.tell(log, logging.ERROR, error, f"a listener of {topic}/{queue_id} failed at {end}")
        else:
            self._trouble.over()

    def close(self) -> None:
        """Ends the listener. A call that has begun runs to its end. Safe to call twice."""
        self._watch.remove(self._entry)

    def __enter__(self) -> ArrivingListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ended(topic: str, error: StoreError) -> None:
    log.debug("the listener of %s ends: %s", topic, error)
