"""Ticks: messages that ask for a duty. A worker's main process does the duty, in the store's thread, and never in its
pool.

Beat sends one message a minute, `cystore.fan_out`. The worker that takes it asks the registry for stores with overdue
duties, and sends a tick to each of those. Usually there is none: the main process of each store's worker sees its
store's needs by itself (`cystore.celery.duties.main_process`).

A tick is hidden from events and from the worker's log, because Celery's part of a worker never sees it as a task:
`strategy` takes the message, acknowledges it, and passes the name on. A duty that is part of a canvas runs as an
ordinary task of the pool, because its successors must be sent. An expired message is discarded.
Untaken messages do no harm: no more are sent while `WAITING_MAX` wait, and a broker with a time to live removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from celery import Task
from celery.exceptions import InvalidTaskError
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker.strategy import default

from cystore.celery import registry
from cystore.celery.base import queues
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties import duty_runs
from cystore.celery.duties.duty_runs import ALL, store_of
from cystore.celery.redis_urls import RedisAwayError
from cystore.clock import now_ms

log = logging.getLogger("cystore.celery")

FAN_OUT, FAN_OUT_S = "cystore.fan_out", 60.0
STRATEGY = "cystore.celery.duties.ticks:strategy"
# A store's queue with this many messages gets no more ticks, because no worker takes them; likewise `fan_out`.
WAITING_MAX, FAN_OUTS_WAITING_MAX = 2 * len(ALL), 2
FOLLOWED = ("chain", "chord", "callbacks", "errbacks")
SLACK_S = 0.5  # messages of beat are not punctual

_takers: WeakKeyDictionary[Any, Callable[[str, str], None]] = WeakKeyDictionary()  # by consumer


def expires_s(period_s: float) -> float:
    """The longest wait of a message that is sent once in `period_s`; in whole seconds, as some schedulers want it."""
    return int(period_s * duty_runs.EXPIRES_PERIODS) or period_s * duty_runs.EXPIRES_PERIODS


# ----------------------------------------------------------------------------------------------- sending


class FanOut(Task):
    """Beat's message. It expires even if a scheduler drops options, and none is sent while earlier ones wait."""

    abstract = True

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        **options: Any,
    ) -> Any:
        """The result of a message that was sent, or None."""
        if self.app.conf.task_always_eager:
            return super().apply_async(args, kwargs, task_id=task_id, producer=producer, **options)
        with self.app.producer_or_acquire(producer) as producer:
            if _waiting(producer.connection, queues.own_queue(queues.SHARED)) >= FAN_OUTS_WAITING_MAX:
                log.debug("%s: not sent, because earlier ones still wait", FAN_OUT)
                return None
            lives_s = options.get("expires") or expires_s(FAN_OUT_S)
            if isinstance(lives_s, (int, float)):
                options.setdefault("expiration", lives_s)
            options = {**options, "queue": options.get("queue") or queues.SHARED, "expires": lives_s}
            return super().apply_async(args, kwargs, task_id=task_id, producer=producer, **options)


def send_ticks(app: Any) -> int:
    """Sends due ticks to the live stores; returns their number.

    A store whose queue is not emptied gets none. Without an answering Redis, the ticks go to the store of the worker
    that runs this.
    """
    wanted = {store_id: names for store_id, names in _due(app).items() if names}
    if not wanted:
        return 0
    with app.producer_or_acquire() as producer:
        try:
            return _send(app, producer, wanted)
        except producer.connection.connection_errors as error:
            log.debug("the broker is away: the next fan_out sends ticks again: %s", error)
            return 0


def _send(app: Any, producer: Any, wanted: dict[str, list[str]]) -> int:
    sent = 0
    for store_id, names in wanted.items():
        queue = queues.own_queue(queues.queue_of_store(store_id))
        if _waiting(producer.connection, queue) >= WAITING_MAX:
            continue
        for name in names:
            duty = ALL[name]
            app.send_task(
                duty.task,
                queue=queue,
                expires=duty.expires_s,
                expiration=duty.expires_s,
                producer=producer,
                retry=False,
            )
            sent += 1
    return sent


def _due(app: Any) -> dict[str, list[str]]:
    """Overdue duties of each live store; for a store with older workers all due ones."""
    coordination = duty_runs.coordination_for(app)
    if coordination is not None:
        try:
            return coordination.call(_due_in_fleet)
        except RedisAwayError:
            log.debug("the registry is away: ticks go to the store of this worker")
    store = store_of(app)
    return {store_id_of(store): duty_runs.due_here(store, SLACK_S)}


def _due_in_fleet(client: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for store_id, needs in registry.needs_of(client, registry.live_stores(client)).items():
        periods = {name: duty.period_s for name, duty in ALL.items() if needs is None or name in needs}
        if periods:
            found |= registry.due_ticks(client, [store_id], periods, SLACK_S)
    return found


def _waiting(connection: Any, queue: Any) -> int:
    """The number of messages in a queue; the queue is made if it is missing."""
    with connection.channel() as channel:
        return int(queue(channel).queue_declare().message_count or 0)


# ------------------------------------------------------------------------------------------------ taking


def take(consumer: Any, ask: Callable[[str, str], None]) -> None:
    """From now on calls `ask(task name, task id)` for each tick that the worker's consumer receives."""
    _takers[consumer] = ask


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., None]:
    """Celery's hook for a worker's treatment of a task's message. A worker that serves no store treats the message like
    any task."""
    celery_strategy = default(task, app, consumer, **options)

    def on_tick(
        message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, *more: Any, **others: Any
    ) -> None:
        ask = _takers.get(consumer)
        if ask is None or _is_part(message, message.headers if body is None else body):
            celery_strategy(message, body, ack, reject, callbacks, *more, **others)
            return
        headers = message.headers if body is None else body
        over = _is_over(headers)
        ack(log, consumer.connection_errors)
        if not over:
            ask(task.name, str(headers.get("id")))

    return on_tick


def _is_part(message: Any, headers: Mapping[str, Any]) -> bool:
    """Whether something follows the message: it is part of a chain, a group or a chord, or has callbacks. It must then
    run as a task."""
    if headers.get("group") or headers.get("taskset"):
        return True
    embedded = headers  # protocol 1
    if headers is message.headers:
        try:
            embedded = message.payload[2]
        except Exception:  # noqa: BLE001 - Celery says what is wrong with it
            return True
    # A list, or a number, is no embedded part: Celery rejects such a message.
    return not isinstance(embedded, Mapping) or any(embedded.get(name) for name in FOLLOWED)


def _is_over(headers: Mapping[str, Any]) -> bool:
    expires = headers.get("expires")
    if not expires:
        return False
    try:
        until: datetime = maybe_make_aware(maybe_iso8601(expires))
    except (TypeError, ValueError) as error:
        raise InvalidTaskError(f"expires is not a time: {expires!r}") from error
    return until.timestamp() * 1000 <= now_ms()
