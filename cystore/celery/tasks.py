"""The store's duties as Celery tasks. Each is a tick: short, bounded, safe to repeat; a lease in Redis picks the
worker.

    cystore.celery.install(app)    # one line, in the module that makes the app

Workers that know these tasks do all duties of their store, not only the three that no store can be without. They do
them in their main process when the store needs them, take ticks (`cystore.celery.duties.ticks`), and enter the store
in the fleet's registry. Beat sends one message a minute, `cystore.fan_out`. Ticks wait in the queue ``cystore.<store
id>``, which the workers of that store consume whatever their ``-Q`` says. The store is the one of the app's result
backend. Importing this module is enough for a worker to take part.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task, signals

from cystore.celery.base import queues
from cystore.celery.duties import duty_runs, ticks
from cystore.celery.duties.duty_runs import Duty
from cystore.celery.duties.ticks import FAN_OUT, FAN_OUT_S
from cystore.celery.duties.ticks import WAITING_MAX as WAITING_MAX
from cystore.celery.eta import keeping

OPTIONS: dict[str, Any] = {
    "ignore_result": True,
    "store_errors_even_if_ignored": False,
    "acks_late": False,
    "track_started": False,
    "Strategy": ticks.STRATEGY,
}


def beat_schedule(period_s: float = FAN_OUT_S) -> dict[str, Any]:
    """The entry for an app's `beat_schedule`. No duty waits for it: it looks after stores whose workers do not see to
    them."""
    options = {"queue": queues.SHARED, "expires": ticks.expires_s(period_s)}
    return {FAN_OUT: {"task": FAN_OUT, "schedule": period_s, "options": options}}


def install(app: Any, period_s: float = FAN_OUT_S) -> None:
    """Puts the duties into an app: its workers do them, with leases in Redis, and beat looks after all stores of the
    fleet. ETAs wait in the store from now on (`cystore_durable_eta_after_s`). Raises ImproperlyConfigured if the app
    has sent tasks already."""
    keeping.install(app)
    app.conf.beat_schedule = {**app.conf.beat_schedule, **beat_schedule(period_s)}


def _task(duty: Duty) -> Any:
    def tick(self: Any) -> int | None:
        return duty_runs.run(self.app, duty)

    tick.__doc__ = duty.step.__doc__
    tick.__name__ = duty.name
    return shared_task(name=duty.task, bind=True, **OPTIONS)(tick)


reput = _task(duty_runs.REPUT)
deliver_delayed = _task(duty_runs.DELIVER_DELAYED)
clean_expired = _task(duty_runs.CLEAN_EXPIRED)
flush = _task(duty_runs.FLUSH)
checkpoint = _task(duty_runs.CHECKPOINT)
chord_sweep = _task(duty_runs.CHORD_SWEEP)
scrub = _task(duty_runs.SCRUB)


@shared_task(name=FAN_OUT, bind=True, base=ticks.FanOut, **OPTIONS)
def fan_out(self: Any) -> int:
    """Sends due ticks to the live stores; returns their number."""
    return ticks.send_ticks(self.app)


@signals.beat_init.connect(weak=False)
def _beat_begins(sender: Any, **_signal: object) -> None:
    """Beat reaches the queue by its name: no binding is left behind in the broker."""
    queues.by_name(sender.app.amqp.queues.add(queues.own_queue(queues.SHARED)))
