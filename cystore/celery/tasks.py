"""The store's duties as Celery tasks. Each is a tick: short, bounded, safe to repeat; beat sends them, a lease picks who runs.

    app.conf.include = [..., "cystore.celery.tasks"]
    app.conf.beat_schedule = {**app.conf.beat_schedule, **cystore.celery.tasks.beat_schedule()}

The store is the one of the app's result backend. Beat's messages go to the queue `cystore`, so that they do not wait behind
other tasks; workers that have the store consume it (``-Q celery,cystore``).
"""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_task_logger

from cystore import MessageStore
from cystore.celery.backend import CystoreBackend
from cystore.celery.coordination import lease, redis_of, store_id_of
from cystore.clock import monotonic_s

log = get_task_logger(__name__)

QUEUE = "cystore"
REPUT, REPUT_DUTY = "cystore.reput", "reput"  # names of the task and of its lease
PERIOD_S = 1.0
EXPIRES_S = 0.8  # below the period: ticks never pile up
TICK_S = 0.5  # a tick ends after the step in which this is over
STEP_BYTES = 4 << 20  # of log in one step, some 15 ms
LOCK_WAIT_S = 0.1  # for somebody who is dispatching at the moment
LEASE_S = 5.0  # longer than any step


def beat_schedule(period_s: float = PERIOD_S) -> dict[str, Any]:
    """Entries for an app's `beat_schedule`."""
    options = {"queue": QUEUE, "expires": period_s * EXPIRES_S / PERIOD_S}
    return {REPUT: {"task": REPUT, "schedule": period_s, "options": options}}


@shared_task(name=REPUT, bind=True, ignore_result=True, acks_late=False)
def reput(self: Any) -> int | None:
    """Fills consume queues and index with what was appended; returns the bytes of log that took, None when another worker
    has the lease.

    Without it readers do the same before they read; with it they find it done. The dispatch lock of the store keeps out who
    does not know yet that the lease is lost. Source: DefaultMessageStore.ReputMessageService.
    """
    store = store_of(self.app)
    until = monotonic_s() + TICK_S
    done = 0
    with lease(redis_of(self.app), store_id_of(store), REPUT_DUTY, LEASE_S) as held:
        if held is None:
            log.debug("reput: another worker has the lease")
            return None
        while held.renew():
            step = store.dispatch(max_bytes=STEP_BYTES, timeout_s=LOCK_WAIT_S)
            done += step
            if step == 0 or monotonic_s() > until:
                return done
    log.warning("reput: the lease with token %d was lost", held.token)
    return done


def store_of(app: Any) -> MessageStore:
    """The store of the app's result backend. Raises ImproperlyConfigured where that is none of ours."""
    backend = app.backend
    if not isinstance(backend, CystoreBackend):
        raise ImproperlyConfigured(
            f"the duties need a result backend cystore:///path, not {backend.as_uri()}"
        )
    return backend.store
