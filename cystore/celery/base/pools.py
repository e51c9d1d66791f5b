"""Pools that run tasks in the worker's own process, and errors there that are not the task's own.

Such an error comes from storing a state: the disk is full, or the task's message has to go back to the broker
(`Reject`). A prefork pool reports it to the worker. The others do not: a thread forgets it, and its place in the pool
is lost; `solo` ends the worker; a greenlet prints a traceback. With this module they also report it to the worker, by
the callback for results.

A worker that stops taking tasks gives the unstarted ones back to the broker, while the pool may be about to begin them.
`claim` decides: a task is begun, or its message goes back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import Reject

OWN_PROCESS = ("thread", "solo", "gevent", "eventlet")
POOL, BROKER = "pool", "broker"


def claim(request: Any, by: str) -> bool:
    """Whether `by` gets a task: the pool begins it, or the broker gets its message back. The first claim is final."""
    return bool(request.__dict__.setdefault("_cystore_claimed", by) == by)


def may_have_begun(pool: Any, request: Any) -> bool:
    """Whether a pool process has a task and may have begun it; it reports the begin a moment later."""
    return not _in_own_process(pool) and request._apply_result is not None


def _in_own_process(pool: Any) -> bool:
    package, _, kind = type(pool).__module__.rpartition(".")
    return package == "celery.concurrency" and kind in OWN_PROCESS


def tell_what_was_raised(pool: Any) -> None:
    """Makes a pool in the worker's own process report errors outside of its tasks' code to the worker, and claim a task
    before it begins it. Does so once for each pool."""
    pool_apply = getattr(pool, "on_apply", None)
    if pool_apply is None or not _in_own_process(pool) or hasattr(pool_apply, "__wrapped__"):
        return

    @functools.wraps(pool_apply)
    def on_apply(target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        accepted = options.get("accept_callback")
        request = getattr(accepted, "__self__", None)
        if accepted is None or request is None:
            return pool_apply(_returning_errors(target), *args, **options)

        def accept(*when: Any) -> None:
            if claim(request, POOL):
                accepted(*when)

        def begin(*args: Any, **kwargs: Any) -> Any:
            if not claim(request, POOL):
                raise Reject("its message went back to the broker", requeue=True)
            return target(*args, **kwargs)

        return pool_apply(_returning_errors(begin), *args, **{**options, "accept_callback": accept})

    pool.on_apply = on_apply


def _returning_errors(target: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the worker gets the error
            return 1, ExceptionInfo(), 0.0  # the arguments of a result's callback: failed, error, run time

    return call
