"""Repeated calls of a worker's timer, and how to end them under gevent and eventlet.

Under both, Celery's timers use a greenlet for each call. `call_repeatedly` returns the first greenlet. Cancelling it
has no effect once it has run: the call repeats for ever. A worker's heartbeat is such a call. Under eventlet it makes a
shutdown hang: the worker closes the heartbeat's connection while a heartbeat waits for its answer. Eventlet does not
wake a greenlet whose socket another greenlet closes, so the heartbeat keeps the lock that the shutdown waits for.
"""

from __future__ import annotations

from typing import Any

# Our consumer steps require these steps, so ours end first. Otherwise the order differs between processes: one of ours
# could end between the heartbeat's step and the connection's, and a heartbeat could begin meanwhile.
STARTED_BEFORE = ("celery.worker.consumer.tasks:Tasks", "celery.worker.consumer.heart:Heart")


def cancel_repeated(timer: Any, call: Any) -> None:
    """Ends a call that `timer.call_repeatedly` returned; a run that has begun ends by itself."""
    entry = getattr(call, "entry", call)
    entry.cancel()  # a run that has begun schedules no later run
    if entry is not call:
        for waiting in [one for one in timer.queue if one.entry is entry and one.gr_frame is None]:
            timer.cancel(waiting)


def end_heartbeats(consumer: Any) -> None:
    """Lets no heartbeat begin any more. Call it before Celery stops a worker's heart and forgets the call. Celery then
    sends its last event, and waits for a heartbeat that has begun."""
    call = getattr(consumer.heart, "tref", None)
    if hasattr(call, "entry"):
        cancel_repeated(consumer.timer, call)
