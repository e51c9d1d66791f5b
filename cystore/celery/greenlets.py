"""Calls that sleep in the operating system, made so that under gevent and eventlet only the greenlet that makes them waits.

They run in the hub's own pool of native threads. Everything else that the store does is short and takes no turn away from anybody;
its locks are the operating system's (`cystore.os_threads`), which a thread of the pool can share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kombu.utils.compat import detect_environment

Answer = TypeVar("Answer")


def in_use() -> bool:
    """True where threads are greenlets: after gevent or eventlet have patched the standard library."""
    return bool(detect_environment() != "default")


def off_the_hub(function: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """Calls `function`, and meanwhile lets other greenlets run. Raises what it raises."""
    environment = detect_environment()
    if environment == "default":
        return function(*args, **kwargs)
    outcome: list[Answer] = []
    errors: list[BaseException] = []

    def call() -> None:  # both hubs print what comes out of their threads as an exception
        try:
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
