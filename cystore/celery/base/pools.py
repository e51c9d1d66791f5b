"""Pools that run tasks in the worker's own process, and errors there that are not the task's own.

Such an error comes from storing a state: the disk is full, or the task's message has to go back to the broker
(`Reject`). A prefork pool reports it to the worker. The others do not: a thread forgets it, and its place in the pool
is lost; `solo` ends the worker; a greenlet prints a traceback. Here they report it to the worker as well, by the
callback for results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo

OWN_PROCESS = ("thread", "solo", "gevent", "eventlet")


def tell_what_was_raised(pool: Any) -> None:
    """From now on a worker hears of errors outside of the code of its tasks, whatever its pool is. Once for each
    pool."""
    usual = getattr(pool, "on_apply", None)
    package, _, kind = type(pool).__module__.rpartition(".")
    if (
        usual is None
        or package != "celery.concurrency"
        or kind not in OWN_PROCESS
        or hasattr(usual, "__wrapped__")
    ):
        return

    @functools.wraps(usual)
    def on_apply(target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return usual(_guarded(target), *args, **options)

    pool.on_apply = on_apply


def _guarded(target: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the worker is told
            return 1, ExceptionInfo(), 0.0  # the arguments of a result's callback: failed, error, run time

    return call
