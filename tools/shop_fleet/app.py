"""The app of the shop: orders are paid, packed in parallel, shipped; mails are sent, reports are made."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from celery import Celery, chain, chord, group
from kombu import Queue

app = Celery(
    "shop",
    broker=os.environ.get("SHOP_BROKER", "memory://"),
    backend=f"cystore://{os.environ.get('SHOP_STORE', '/tmp/cystore-shop')}",
    set_as_current=False,
)
app.conf.update(
    task_queues=[Queue(name) for name in ("orders", "mail", "reports")],
    task_default_queue="orders",
    task_routes={"shop.send_mail": {"queue": "mail"}, "shop.make_report": {"queue": "reports"}},
    task_send_sent_event=True,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    result_extended=True,
    cystore_lifecycle_redact=["card"],
    cystore_lifecycle_payload="message",
    cystore_durable_eta_after_s=30,
)


class CardDeclinedError(Exception):
    """The bank refused."""


def _work(most_s: float) -> None:
    """The task's work takes some time."""
    time.sleep(random.triangular(0.005, most_s, most_s / 5))


@app.task(name="shop.charge")
def charge(order: int, card: str) -> dict[str, Any]:
    _work(0.2)
    if card.startswith("4000"):
        raise CardDeclinedError(f"order {order}: the bank declined the card")
    return {"order": order, "paid": True}


@app.task(name="shop.pack", bind=True, max_retries=3)
def pack(self: Any, order: int, item: str) -> str:
    _work(0.15)
    if item == "cup" and not self.request.retries:
        raise self.retry(countdown=0.2, exc=RuntimeError("the cup broke"))
    return item


@app.task(name="shop.ship")
def ship(items: list[str], order: int) -> str:
    _work(0.1)
    return f"order {order}: {' and '.join(items)}"


@app.task(name="shop.send_mail")
def send_mail(to: str, subject: str) -> None:
    _work(0.3)
    if to.endswith("@example.org"):
        raise ConnectionRefusedError(111, "mail.example.org: connection refused")


@app.task(name="shop.make_report")
def make_report(day: str) -> dict[str, Any]:
    _work(0.8)
    return {"day": day, "orders": 1204, "revenue": "18,204.50"}


@app.task(name="shop.recount", ignore_result=True)
def recount(seconds: float) -> None:
    time.sleep(seconds)


def place(number: int) -> Any:
    """Sends the workflow of an order; its last result."""
    items = ["tea", "cup"] if number % 5 == 0 else ["tea", "pot", "honey"][: 1 + number % 3]
    card = "4000 1111" if number % 9 == 4 else "5100 2222"
    to = f"customer{number}@example.{'org' if number % 11 == 3 else 'com'}"
    return chain(
        charge.si(number, card=card),
        chord([pack.si(number, item) for item in items], ship.s(number)),
        group(send_mail.si(to, f"order {number} is on its way"), make_report.si("2026-11-29")),
    ).delay()
