"""The store that is the app's broker: open for reading, or as a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery.exceptions import ImproperlyConfigured
from kombu import Connection
from kombu.exceptions import KombuError

from cystore import MessageStore, StoreError
from cystore.celery.commands.shared import app_store
from cystore.celery.move import Carried, carry, drain, queue_look
from cystore.celery.move.carry import target_of
from cystore.celery.stores import EXAMPLE, SCHEME, Location
from cystore.errors import did_you_mean, hidden
from cystore.operate.output import one_line


def location_of(ctx: click.Context) -> Location:
    """The place of the broker's store."""
    url = ctx.obj.app.conf.broker_read_url or ""
    url = url[0] if isinstance(url, (list, tuple)) and url else str(url)
    if not url.startswith(f"{SCHEME}:"):
        raise app_store.CommandError(
            f"the app's broker is {hidden(url)}: this command needs a broker in a store, broker_url = {EXAMPLE}"
        )
    try:
        return Location.parse(url)
    except (ImproperlyConfigured, StoreError) as error:
        raise app_store.CommandError(one_line(str(error))) from error


@contextmanager
def reading(ctx: click.Context) -> Iterator[MessageStore]:
    """The broker's store, opened for reading only."""
    with app_store.reading(location_of(ctx)) as store:
        yield store


@contextmanager
def connected(ctx: click.Context, *queues: str) -> Iterator[Connection]:
    """A connection to the broker, for a command that changes it. A store, and queues, that are not there are not
    made."""
    with reading(ctx) as store:
        for name in queues:
            check(store, name)
    with app_store.as_command_errors(), ctx.obj.app.connection_for_write() as connection:
        connection.connect()
        yield connection


def check(store: MessageStore, name: str) -> None:
    """Refuses a queue that the broker does not have."""
    known = queue_look.names(store)
    if name not in known:
        raise app_store.CommandError(
            one_line(
                f"the broker has no queue {name!r}{did_you_mean(name, known) or '; `queues` lists them'}"
            )
        )


def move(
    app: Any, source: Connection, url: str, queues: list[str], told: Callable[[str, int], object]
) -> list[Carried]:
    """Drains queues into another broker."""
    with as_broker_errors(url), target_of(url) as target:
        return drain(source, target, queues, app.amqp.queues, told)


def move_within(source: Connection, name: str, to: str, queue: Any, limit: int | None) -> int:
    """Moves messages from one queue to another one of the same broker."""
    with as_broker_errors(to):
        return carry(source, name, source, queue, limit=limit)


@contextmanager
def as_broker_errors(url: str) -> Iterator[None]:
    """Turns an error of a broker into one line."""
    try:
        yield
    except StoreError:
        raise
    except (KombuError, OSError) as error:
        text = one_line(f"{type(error).__name__}: {error}")
        raise app_store.CommandError(
            f"{hidden(url)} does not take the messages: {text}. The other messages stay: repeat the command"
        ) from error
