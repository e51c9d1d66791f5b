"""Messages of a broker in a store on their way into another queue, or into another broker.

A message is settled here when the other side has it. So a kill in between leaves it on both sides, once, and loses
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kombu import Connection, Exchange, Queue

from cystore._native.system.failpoint import failpoint
from cystore.celery.base.records import CLAIM
from cystore.celery.transport import Transport
from cystore.consumers.claims import ClaimedQueue
from cystore.errors import StoreConfigError

AT_ONCE = 64
CONNECT_S = 5.0
# Properties that the other side makes itself, or does not have.
OURS = ("delivery_tag", "delivery_info", "body_encoding", CLAIM)


class Carried(NamedTuple):
    """How many messages of a queue went to the other side, and how many stay, because workers that live have them."""

    queue: str
    moved: int
    held: int


def carry(
    source: Connection,
    name: str,
    target: Connection,
    queue: Queue,
    told: Callable[[int], object] = lambda moved: None,
    limit: int | None = None,
) -> int:
    """Moves the ready messages of a queue, as they are, into another one, which is declared; returns their number.
    `told` hears of it now and then. With `limit` not more than that. Raises the errors of the target's broker: what was
    not moved stays."""
    moved = 0
    with source.channel() as taking, target.channel() as giving, target.Producer(giving) as producer:
        queue(giving).declare()
        while limit is None or moved < limit:
            most = AT_ONCE if limit is None else min(AT_ONCE, limit - moved)
            payloads = taking.take(name, most)
            if not payloads:
                return moved
            tags = [payload["properties"]["delivery_tag"] for payload in payloads]
            try:
                for payload in payloads:
                    _publish(producer, queue.name, payload)
                    failpoint("move.published")
                    taking.settle(tags.pop(0))
                    moved += 1
            finally:
                taking.give_back(tags)
            told(moved)
    return moved


def _publish(producer: Any, queue: str, payload: Mapping[str, Any]) -> None:
    """The body goes as its bytes are, compressed or not."""
    properties = {name: value for name, value in payload["properties"].items() if name not in OURS}
    expiration_ms = properties.pop("expiration", None)
    if expiration_ms is not None:
        properties["expiration"] = int(expiration_ms) / 1000
    producer.publish(
        payload["body"] or b"",
        content_type=payload.get("content-type") or "application/data",
        content_encoding=payload.get("content-encoding"),
        headers=dict(payload["headers"]),
        exchange="",
        routing_key=queue,
        **properties,
    )


def drain(
    source: Connection,
    target: Connection,
    queues: Iterable[str],
    known: Mapping[str, Queue] | None = None,
    told: Callable[[str, int], object] = lambda queue, moved: None,
) -> list[Carried]:
    """Moves the ready messages of queues into queues of the same names in another broker. `known` has the queues that
    an app declares; others are made as queues that last. Raises the errors of the other broker, and StoreConfigError
    if that is the same store: its queues would never be empty."""
    here: Any = source.connection
    there: Any = target.connection
    if isinstance(there, Transport) and there.store.path.samefile(here.store.path):
        raise StoreConfigError(
            "both brokers are this store: name another one, or move single queues with `celery cystore queue move`",
            path=here.store.path,
        )
    done = []
    for name in queues:
        queue = (known or {}).get(name) or Queue(name, Exchange(""), routing_key=name, durable=True)
        moved = carry(source, name, target, queue, partial(told, name))
        done.append(Carried(name, moved, held(source, name)))
    return done


def held(source: Connection, name: str) -> int:
    """How many messages of a queue somebody has."""
    return sum(len(one.claimed()) for one in _claims(source, name))


def _claims(source: Connection, name: str) -> list[ClaimedQueue]:
    transport: Any = source.connection
    found: list[ClaimedQueue] = transport.claimed_queues(name)
    return found


def target_of(url: str) -> Connection:
    """A connection to another broker, which says of each message that it has it. Raises the broker's errors if it does
    not answer."""
    target = Connection(url, connect_timeout=CONNECT_S, transport_options={"confirm_publish": True})
    target.ensure_connection(max_retries=1, timeout=2 * CONNECT_S)
    return target
