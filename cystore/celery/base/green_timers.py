"""Repeated calls of a worker's timer, and how to end them under gevent and eventlet.

There Celery's timers have a greenlet for each call. `call_repeatedly` gives the first of them, and cancelling that one
does nothing once it has run: the call comes again for ever. The heartbeat of a worker is such a call. Under eventlet it
makes a shutdown hang: the worker closes the heartbeat's connection while a heartbeat waits for its answer, eventlet
wakes no greenlet whose socket another one closes, and the heartbeat keeps the lock that the shutdown waits for.
"""

from __future__ import annotations

from typing import Any

# Our steps of a consumer require these, so they end before them. Otherwise the order differs from process to process,
# and a heartbeat could begin while one of ours ends between the heartbeat's own end and that of its connection.
STARTED_BEFORE = ("celery.worker.consumer.tasks:Tasks", "celery.worker.consumer.heart:Heart")


def cancel_repeated(timer: Any, call: Any) -> None:
    """Ends a call that `timer.call_repeatedly` returned; a run that has begun ends by itself."""
    entry = getattr(call, "entry", call)
    entry.cancel()  # a run that has begun enters no later one
    if entry is not call:
        for waiting in [one for one in timer.queue if one.entry is entry and one.gr_frame is None]:
            timer.cancel(waiting)


def end_heartbeats(consumer: Any) -> None:
    """Before Celery stops a worker's heart, and forgets which call it was: no heartbeat begins any more. Celery then
    sends its last event, and waits for a heartbeat that has begun."""
    call = getattr(consumer.heart, "tref", None)
    if hasattr(call, "entry"):
        cancel_repeated(consumer.timer, call)
