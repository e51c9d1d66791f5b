"""Storing in a worker's main process: the states of revoked, timed out and lost tasks. The event loop waits for it a
limited time.

The loop must send heartbeats and answer remote control. A put may wait for a disk, or for a stopped process that holds
the append lock. So a separate thread stores the states, in the order of the calls. The loop waits for the thread before
a message is acknowledged, but at most `WAIT_S`, and not again before the thread has caught up. Only a SIGKILL during
such a delay leaves an acknowledged task without its last state. A warm shutdown waits for the thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from celery._state import get_current_task

from cystore.celery.base import greenlets
from cystore.celery.base.processes import in_pool
from cystore.system.threads.thread_pool import ThreadPool

log = logging.getLogger("cystore.celery")

WAIT_S = 1.0

_thread: ThreadPool | None = None
_late: Future[None] | None = None  # the last call that the loop did not wait for


def store(app: Any, what: str, call: Callable[[], None]) -> None:
    """Makes `call`, and raises its error. In the event loop of a worker of `app` the call may be made later: then an
    error is logged, and `what` names the lost state."""
    global _thread, _late
    if not _is_loop(app):
        call()
        return
    _thread = _thread or ThreadPool(1, "cystore-event-loop")
    future = _thread.submit(call)
    behind = _late is not None and not _late.done()
    wait([future], 0 if behind else WAIT_S)
    if future.done():
        future.result()
        return
    if not behind:
        log.warning("the worker continues; not stored yet, with all later states: %s", what)
    _late = future
    future.add_done_callback(lambda done: _tell(what, done))


def _is_loop(app: Any) -> bool:
    """Whether this thread runs a worker's event loop, and no task at the moment (the pool `solo` runs tasks in it)."""
    return (
        getattr(app.loader, "worker_initialized", False)
        and not in_pool()
        and not greenlets.in_use()  # other greenlets run while a put waits
        and threading.current_thread() is threading.main_thread()
        and get_current_task() is None
    )


def _tell(what: str, done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        log.error("could not store: %s: %s", what, error, exc_info=error)


def _forked() -> None:
    """The thread belongs to the parent."""
    global _thread, _late
    _thread = _late = None


os.register_at_fork(after_in_child=_forked)
