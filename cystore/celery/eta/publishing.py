"""The sending of a message into the store, in the place of the broker."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.utils.time import maybe_make_aware
from kombu import Exchange, Queue
from kombu.serialization import dumps

from cystore.celery import homes
from cystore.celery.base import events, greenlets
from cystore.celery.eta import remote, revoking, waiting
from cystore.celery.lifecycle import senders
from cystore.celery.lifecycle.payload import LoggedMessage
from cystore.clock import now_ms

log = logging.getLogger("cystore.celery")

MARK = "durable eta"
DUTIES = "cystore."  # prefix of the store's own tasks
BROKERS_OWN = "celery_delayed_"  # exchanges of a broker that delays messages itself (quorum queues)

_told: weakref.WeakSet[Celery] = weakref.WeakSet()


def watch(app: Celery, after_s: Callable[[Celery], float | None]) -> None:
    """Lets the app's messages pass here. `after_s` gives the least wait of one that is kept; None: none is."""
    reference = weakref.ref(app)

    def keep(
        send: senders.Send, producer: Any, name: str, message: Any, *positional: Any, **options: Any
    ) -> Any:
        owner = reference()
        due_ms = None if owner is None else _due_ms(owner, name, message, options, after_s(owner))
        if owner is None or due_ms is None:
            return send(producer, name, message, *positional, **options)
        return send(_Keeping(owner, producer, due_ms), name, message, *positional, **options)

    senders.stand_around(app, MARK, keep)
    revoking.watch(app)


def _due_ms(
    app: Celery, name: str, message: Any, options: Mapping[str, Any], least_s: float | None
) -> int | None:
    """The time until which the store has to keep a message; None if it goes to the broker now."""
    headers = getattr(message, "headers", None) or {}
    eta = headers.get("eta")
    if not eta or name.startswith(DUTIES) or "id" not in headers:
        return None
    if least_s is None or _broker_delays(options.get("exchange")):
        return None
    location = getattr(app.backend, "location", None)
    if location is None or not (location.path or homes.setting(app)):
        return None
    due_ms = _moment_ms(eta)
    return due_ms if due_ms is not None and due_ms - now_ms() >= least_s * 1000 else None


def _moment_ms(eta: Any) -> int | None:
    """The time of an ETA. One without a zone means what it means to a worker."""
    try:
        moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
        return int(maybe_make_aware(moment).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None  # the worker reports it


def _broker_delays(exchange: Any) -> bool:
    return str(getattr(exchange, "name", exchange) or "").startswith(BROKERS_OWN)


class _Collecting:
    """A producer that keeps a message, and gives it to nobody."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.connection = app.connection_for_write()  # Celery names its errors, and nobody connects
        self.record = b""

    def publish(self, body: Any, **options: Any) -> None:
        """Keeps the task's message; its event `task-sent` goes nowhere."""
        if not self.record:
            self.record = _record_of(self._app, body, dict(options.get("headers") or {}), options)


def message_of(app: Celery, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> bytes:
    """The record of a task's message, as it would go to the broker. Celery's signals come as for a task that is sent.
    Raises whatever a call raises."""
    collecting = _Collecting(app)
    task = app.tasks.get(name)
    if task is None:
        app.send_task(name, args, kwargs, producer=collecting, **options)
    else:
        task.apply_async(args, kwargs, producer=collecting, **options)
    if not collecting.record:
        raise ValueError("the app runs tasks itself (task_always_eager)")
    return collecting.record


class _Keeping:
    """A producer whose first message goes into the store. The app's sending function uses it for the task, and then for
    its event `task-sent`."""

    def __init__(self, app: Celery, producer: Any, due_ms: int) -> None:
        self._app, self._producer, self._due_ms = app, producer, due_ms
        self._kept = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Puts the message; returns when it is durable. Raises the store's errors: the task is not sent then."""
        if self._kept:
            return self._producer.publish(body, **options)
        headers = dict(options.get("headers") or {})
        try:
            record = _record_of(self._app, body, headers, options)
            task = waiting.parse(record, self._due_ms, 0)  # what is kept can be sent
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything: the broker's way raises it again
            if self._app not in _told:
                _told.add(self._app)
                log.warning(
                    "task %s waits in a worker for its ETA: its message cannot be kept: %s: %s", headers.get("id"),
                    type(error).__name__, error,
                )  # fmt: skip
            return self._producer.publish(body, **options)
        self._kept = True
        _put(self._app, task, record, self._producer)
        return None


def _record_of(app: Celery, body: Any, headers: dict[str, Any], options: dict[str, Any]) -> bytes:
    known = {
        "exchange", "routing_key", "serializer", "compression", "retry", "retry_policy", "declare", "headers",
        "timeout", "confirm_timeout", "mandatory", "immediate",
    }  # fmt: skip
    properties = {key: value for key, value in options.items() if key not in known and value is not None}
    content_type, encoding, data = properties.pop("content_type", None), None, body
    if content_type is None:
        content_type, encoding, data = dumps(
            body, serializer=options.get("serializer") or app.conf.task_serializer
        )
    message = LoggedMessage(
        headers=headers, properties=properties, body=data.encode() if isinstance(data, str) else bytes(data),
        content_type=content_type, content_encoding=encoding or properties.pop("content_encoding", "binary"),
        compression=options.get("compression"), exchange=_name_of(options.get("exchange")),
        routing_key=options.get("routing_key") or "",
    )  # fmt: skip
    return waiting.body_of(message, [_queue_fields(one) for one in options.get("declare") or ()])


def _queue_fields(one: Any) -> dict[str, Any]:
    if not isinstance(one, Queue):
        raise TypeError(f"{type(one).__name__} in `declare` is no queue")
    fields: dict[str, Any] = one.as_dict(recurse=True)
    return {name: value for name, value in fields.items() if value is not None}


def _name_of(exchange: Exchange | str | None) -> str:
    return str(getattr(exchange, "name", exchange) or "")


def _put(app: Celery, task: waiting.WaitingTask, record: bytes, producer: Any) -> None:
    """Into this process's store; without one, and in a replica, into the task's home."""
    backend = app.backend
    store = waiting.store_of(backend)
    if store is None:
        remote.send(app, homes.home_of(backend, Context(task.headers)), record, task.due_ms, producer)
        return
    greenlets.off_the_hub(waiting.put, store, task, record)
    waiting.note(app, events.SCHEDULED, task)
