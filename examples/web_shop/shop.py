"""The app of a web shop: an order is paid, its items are packed in parallel, then it is shipped."""

from __future__ import annotations

import os

from celery import Celery, chain, chord

app = Celery(
    "shop",
    broker=os.environ.get("APP_BROKER", "redis://localhost:6379/0"),
    backend=f"cystore://{os.environ.get('APP_STORE', '/tmp/cystore-shop')}",
)
app.conf.cystore_lifecycle_redact = ["card"]  # no value of this name is kept
app.conf.broker_connection_retry_on_startup = True


@app.task
def pay(order, card):
    if card.startswith("4000"):
        raise ValueError("declined")
    return f"{order} paid"


@app.task(bind=True, max_retries=3)
def pack(self, order, item):
    if item == "cup" and not self.request.retries:
        raise self.retry(countdown=0.1, exc=RuntimeError("the cup broke"))
    return item


@app.task
def ship(items, order):
    return f"{order}: {' and '.join(items)}"


def place(number, items, card):
    """Sends the workflow of an order; returns the result of its last task."""
    order = f"order-{number}"
    packed = [pack.s(order, item).set(task_id=f"{item}-{number}") for item in items]
    workflow = chain(
        pay.si(order, card=card).set(task_id=f"pay-{number}"),
        chord([one.set(immutable=True) for one in packed], ship.s(order).set(task_id=f"ship-{number}")),
    )
    return workflow.delay()
