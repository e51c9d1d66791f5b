"""Calls that sleep in the operating system: under gevent and eventlet only the calling greenlet waits.

They run in the hub's own pool of native threads. The store's other calls are short and run in the hub. Its locks are
the operating system's (`cystore.system.threads.os_threads`), which a thread of the pool can share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kombu.utils.compat import detect_environment

from cystore import PageCacheBusyError
from cystore.system.threads import native_log, os_threads

HUB_WAITS_MS = 10  # for the append lock: a call in another thread costs more than most waits

Answer = TypeVar("Answer")


def in_use() -> bool:
    """True where threads are greenlets: after gevent or eventlet have patched the standard library."""
    return bool(detect_environment() != "default")


class Thread:
    """A thread of `threading`, which may be a greenlet. Use it for work with a server, because a socket belongs to the
    hub that opened it. Starts when made, like `os_threads.Thread`."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        self._thread = os_threads.begin(target, name)

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until the thread has ended, at most for this time."""
        self._thread.join(timeout_s)


def off_the_hub(function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """Calls `function`, and lets other greenlets run meanwhile. Raises its error."""
    environment = detect_environment()
    if environment == "default":
        return function(*args, **kwargs)
    native_log.relay()
    outcome: list[Answer] = []
    errors: list[BaseException] = []

    def call() -> None:  # both hubs print an exception that leaves their threads
        try:
            with os_threads.as_native():
                outcome.append(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised below, in the greenlet that asked
            errors.append(error)

    if environment == "gevent":
        from gevent import get_hub

        get_hub().threadpool.apply(call)
    else:
        from eventlet import tpool

        tpool.execute(call)
    if errors:
        raise errors[0]
    return outcome[0]


def append(put: Callable[..., Answer], busy_timeout_ms: int | None = None) -> Answer:
    """Calls `put(busy_timeout_ms=...)`, which appends and waits for no disk. While another process holds the append
    lock, only this greenlet waits for it."""
    if not in_use():
        return put(busy_timeout_ms=busy_timeout_ms)
    try:
        return put(busy_timeout_ms=HUB_WAITS_MS)
    except PageCacheBusyError:
        return off_the_hub(put, busy_timeout_ms=busy_timeout_ms)
