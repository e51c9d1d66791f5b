"""The queue of one store, `cystore.<store id>`, for messages that only processes with that store can handle.

Every worker that has the store consumes it, whatever its ``-Q`` says. The worker adds it when it is ready (or earlier,
if it does the store's duties) and keeps it through reconnects. A worker whose store cannot be opened logs that and
continues without it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals
from kombu import Exchange, Queue

if TYPE_CHECKING:
    from cystore.celery.stores import Location

log = logging.getLogger("cystore")

SHARED = "cystore"  # for any worker with a store: messages whose loss does no harm
PREFIX = "cystore."


def queue_of_store(store_id: str) -> str:
    """The name of the queue of a store."""
    return PREFIX + store_id


def own_queue(name: str) -> Queue:
    """A queue on the broker's default exchange, reached by its name alone: it needs no binding that outlives it.
    Messages of the shared queue need no acknowledgement, which would cost eight Redis commands."""
    return Queue(name, Exchange(""), routing_key=name, no_ack=name == SHARED)


def by_name(queue: Queue) -> Queue:
    """Removes the app's default exchange, which Celery gives each queue that it adds."""
    queue.exchange = Exchange("")
    return queue


def declared(app: Any, store_id: str) -> str:
    """Makes the queue known to the app, even if `task_create_missing_queues` is off; returns its name."""
    name = queue_of_store(store_id)
    if name not in app.amqp.queues:
        by_name(app.amqp.queues.add(own_queue(name)))
    return name


def consume_own_queue(app: Any, store_id: str) -> None:
    """Makes a starting worker listen to its store's queue and to `cystore`, whatever its ``-Q`` says."""
    for name in (queue_of_store(store_id), SHARED):
        by_name(app.amqp.queues.select_add(own_queue(name)))


def location_of(app: Any) -> Location | None:
    """The place of the store of an app's result backend; None for another backend, or without a store on this host."""
    location = getattr(app.backend, "location", None)
    if location is None:
        return None
    # An app with another backend needs no module that opens stores.
    from cystore.celery.stores import Location

    return location if isinstance(location, Location) and location.path else None


@signals.worker_ready.connect(weak=False)
def consume_when_ready(sender: Any, **_signal: Any) -> None:
    """Lets a worker that is ready consume the queue of its store, if it does not yet."""
    location = location_of(sender.app)
    if location is None:
        return
    from cystore.celery.base.identity import known_home_of
    from cystore.celery.stores import open_shared
    from cystore.errors import StoreError

    try:
        name = queue_of_store(known_home_of(open_shared(location, sender.app)))
    except StoreError as error:
        log.error("this worker cannot open its store, and does no duties for it: %s", error)
        return
    queues, consumer = sender.app.amqp.queues, sender.task_consumer
    if name not in queues.consume_from:
        # Not by `add_task_queue`: it gives the queue the app's default exchange again.
        consumer.add_queue(by_name(queues.select_add(own_queue(name))))
        consumer.consume()
        log.info("this worker consumes the queue of its store, %s", name)
