"""The store's duties as Celery tasks. Each is a tick: short, bounded, safe to repeat; a lease picks who runs.

    cystore.celery.tasks.install(app)    # one line, in the module that makes the app

Beat then sends one message a second, `cystore.fan_out`. A worker that has a store takes it and sends ticks to the stores that live, each
to its queue ``cystore.<store id>``, which the workers of that store consume whatever their ``-Q`` says. The store is the one of the
app's result backend. Importing this module is enough for a worker to take part.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task, signals
from celery.utils.log import get_task_logger

from cystore.celery import duties, queues, registry
from cystore.celery import spark_tasks as spark_tasks  # a worker takes those too
from cystore.celery.duties import ALL, Duty, store_of
from cystore.celery.identity import store_id_of
from cystore.celery.redis_urls import RedisAwayError

log = get_task_logger(__name__)

FAN_OUT, FAN_OUT_S = "cystore.fan_out", 1.0
WAITING_MAX = 2 * len(
    ALL
)  # messages in a store's queue beyond which it gets no more ticks: nobody takes them
OPTIONS: dict[str, Any] = {
    "ignore_result": True,
    "store_errors_even_if_ignored": False,
    "acks_late": False,
    "track_started": False,
}


def beat_schedule(period_s: float = FAN_OUT_S) -> dict[str, Any]:
    """The entry for an app's `beat_schedule`; no duty has a shorter period than this one."""
    options = {"queue": queues.SHARED, "expires": period_s * duties.EXPIRES_PERIODS}
    return {FAN_OUT: {"task": FAN_OUT, "schedule": period_s, "options": options}}


def install(app: Any, period_s: float = FAN_OUT_S) -> None:
    """Puts the duties into an app: beat sends them, and its workers do them."""
    app.conf.beat_schedule = {**app.conf.beat_schedule, **beat_schedule(period_s)}


def _task(duty: Duty) -> Any:
    def tick(self: Any) -> int | None:
        return duties.run(self.app, duty)

    tick.__doc__ = duty.step.__doc__
    tick.__name__ = duty.name
    return shared_task(name=duty.task, bind=True, **OPTIONS)(tick)


reput = _task(duties.REPUT)
deliver_delayed = _task(duties.DELIVER_DELAYED)
clean_expired = _task(duties.CLEAN_EXPIRED)
flush = _task(duties.FLUSH)
checkpoint = _task(duties.CHECKPOINT)
chord_sweep = _task(duties.CHORD_SWEEP)
scrub = _task(duties.SCRUB)


@shared_task(name=FAN_OUT, bind=True, **OPTIONS)
def fan_out(self: Any) -> int:
    """Sends the ticks that are due to the stores that live; returns how many.

    A store whose queue is not emptied gets none: its worker does the duties itself. Without a Redis that answers, the ticks go to
    the store of the worker that runs this.
    """
    app = self.app
    sent = 0
    with app.producer_or_acquire() as producer:
        for store_id, names in _due(app).items():
            queue = queues.own_queue(queues.queue_of_store(store_id))
            if names and _waiting(producer.connection, queue) < WAITING_MAX:
                for name in names:
                    duty = ALL[name]
                    app.send_task(
                        duty.task, queue=queue, expires=duty.expires_s, producer=producer, retry=False
                    )
                    sent += 1
    return sent


def _due(app: Any) -> dict[str, list[str]]:
    """Duties that are due, of each store that lives."""
    periods = {duty.name: duty.period_s for duty in ALL.values()}
    coordination = duties.coordination_for(app)
    if coordination is not None:
        try:
            return coordination.call(
                lambda client: registry.due_ticks(
                    client, registry.live_stores(client), periods, FAN_OUT_S / 2
                )
            )
        except RedisAwayError:
            log.debug("the registry is away: ticks go to the store of this worker")
    store = store_of(app)
    return {store_id_of(store): duties.due_here(store, FAN_OUT_S / 2)}


def _waiting(connection: Any, queue: Any) -> int:
    """How many messages wait in a queue; it is made if it is missing."""
    with connection.channel() as channel:
        return int(queue(channel).queue_declare().message_count or 0)


@signals.beat_init.connect(weak=False)
def _beat_begins(sender: Any, **_signal: object) -> None:
    """Beat reaches the queue by its name: no binding is left behind in the broker."""
    queues.by_name(sender.app.amqp.queues.add(queues.own_queue(queues.SHARED)))
