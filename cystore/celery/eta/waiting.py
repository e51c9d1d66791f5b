"""The messages of tasks that wait in the store: their form, a list of them, and what ends their wait.

A message waits in the topic `celery_eta` as one that was put with `deliver_at_ms`. Its key is the task's id. Its body
is a JSON object: `message` is the message as it would have gone to the broker (`lifecycle.payload`), `declare` are the
queues that its sender would have declared. When it is due the store delivers it into the topic's queue 0, from where a
worker sends it (`sending`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.task import Context
from kombu.utils.json import dumps, loads

from cystore.celery import homes
from cystore.celery.base import events, greenlets, records
from cystore.celery.base.identity import has_home, is_replica
from cystore.celery.eta import delivered
from cystore.celery.history import JSON
from cystore.celery.lifecycle import recorder
from cystore.celery.lifecycle.payload import LoggedMessage
from cystore.clock import now_ms
from cystore.layout import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cystore import Message, MessageStore
    from cystore.celery.backend import CystoreBackend

log = logging.getLogger("cystore.celery")

TOPIC = "celery_eta"
EVER_MS = 1 << 62


class NotATaskError(ValueError):
    """The content of a record is not the message of a task."""


@dataclass(frozen=True)
class WaitingTask:
    """A task that waits in a store. `due_ms`: ms since 1970; `physical_offset`: its place in the log."""

    task_id: str
    name: str
    due_ms: int
    message: LoggedMessage
    declare: Sequence[Mapping[str, Any]]
    physical_offset: int

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers of its message."""
        return self.message.headers


def body_of(message: LoggedMessage, declare: Sequence[Mapping[str, Any]]) -> bytes:
    """The record's body. Raises kombu's EncodeError, TypeError or ValueError for headers that JSON cannot hold."""
    text = dumps({"message": message.as_json(), "declare": list(declare)})
    return text.encode("utf-8", "surrogatepass")


def parse(body: Any, due_ms: int, physical_offset: int) -> WaitingTask:
    """The task in a record. Raises NotATaskError."""
    try:
        fields = loads(bytes(body).decode("utf-8", "surrogatepass"))
        message = LoggedMessage.of(fields["message"])
        declare = fields["declare"]
        task_id, name = message.headers["id"], message.headers["task"]
    except Exception as error:  # JSON may name types of kombu's, whose makers raise anything
        raise NotATaskError(f"{type(error).__name__}: {error}") from error
    if not isinstance(task_id, str) or not isinstance(name, str) or not isinstance(declare, list):
        raise NotATaskError("its id, name or queues have the wrong type")
    return WaitingTask(task_id, name, due_ms, message, declare, physical_offset)


def store_of(backend: CystoreBackend) -> MessageStore | None:
    """This process's store, in which tasks can wait; None without one, and in a replica. Raises the errors of an
    open."""
    if not backend.location.path:
        return None
    store = backend.store
    if is_replica(store) and has_home(store):
        return None
    return backend.store_to_write if store.config.read_only else store


def put(store: MessageStore, task: WaitingTask, body: bytes) -> None:
    """Makes a task wait, durably. Raises the errors of `put`."""
    store.put(
        TOPIC, body, queue_id=delivered.QUEUE_ID, keys=(records.key_of(task.task_id),),
        properties={"task": records.kept_name(task.name)}, deliver_at_ms=task.due_ms,
        flush=homes.safe_flush(store, "sync"),
    )  # fmt: skip


def waiting(store: MessageStore, begin_ms: int = 0, end_ms: int = EVER_MS) -> Iterator[WaitingTask]:
    """The tasks that wait, in the order of their due times. Leaves out records that are not messages of tasks."""
    for one in store.pending(TOPIC, begin_ms, end_ms):
        try:
            yield parse(one.body, one.deliver_at_ms, one.physical_offset)
        except NotATaskError:
            continue


def fired(message: Message) -> WaitingTask:
    """The task in a record that was delivered. Raises NotATaskError."""
    return parse(message.body, 0, message.physical_offset)


def last_of(store: MessageStore, task_id: str) -> WaitingTask | None:
    """The newest task of that id that waits or waited here; None without one."""
    for message in store.query(SCHEDULE_TOPIC, records.key_of(task_id)):
        if message.properties.get("REAL_TOPIC") == TOPIC:
            with suppress(NotATaskError):
                return parse(message.body, message.deliver_at_ms or 0, message.physical_offset)
    return None


def move(app: Celery, store: MessageStore, task_id: str, due_ms: int) -> bool:
    """Gives a waiting task another due time, ms since 1970, and enters it into the lifecycle log; False if it does not
    wait here."""
    task = last_of(store, task_id)
    if not store.reschedule(TOPIC, records.key_of(task_id), due_ms):
        return False
    if task is not None:
        note(app, events.SCHEDULED, task, eta=datetime.fromtimestamp(due_ms / 1000, UTC).isoformat())
    return True


def fire(app: Celery, store: MessageStore, task_id: str) -> bool:
    """Makes a waiting task due at once; False if it does not wait here."""
    return move(app, store, task_id, now_ms())


def tell_cancelled(app: Celery, task: WaitingTask) -> None:
    """Enters the end of a withdrawn task: its state becomes REVOKED, as if a worker had revoked it; and an event."""
    note(app, events.CANCELLED, task)
    if not task.headers.get("ignore_result"):
        app.backend.mark_as_revoked(task.task_id, "revoked", request=request_of(app, task), store_result=True)


def fail(app: Celery, task: WaitingTask, error: Exception) -> None:
    """Enters the failure of a task that no worker gets."""
    app.backend.mark_as_failure(task.task_id, error, request=request_of(app, task))


def request_of(app: Celery, task: WaitingTask) -> Any:
    """The request that a worker would have made of the message, as far as a state needs it."""
    headers, embedded = task.headers, {}
    if task.message.content_type == JSON:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            embedded = dict(json.loads(task.message.body)[2] or {})
    else:
        log.debug(
            "task %s: its chord is unknown, because its message is %s",
            task.task_id,
            task.message.content_type,
        )
    return Context({**headers, **embedded}, args=(), kwargs={}, called_directly=False)


def cancel_all(app: Celery, store: MessageStore, task_ids: Sequence[str]) -> list[str]:
    """Withdraws those of these tasks that wait here; returns their ids."""
    tasks = (last_of(store, task_id) for task_id in task_ids)
    return _withdrawn(app, store, (task for task in tasks if task is not None))


def cancel_stamped(app: Celery, store: MessageStore, stamps: Mapping[str, Any]) -> list[str]:
    """Withdraws the waiting tasks that have one of these values in a stamp; returns their ids."""
    tasks: list[WaitingTask] = greenlets.off_the_hub(list, waiting(store))
    stamped = [task for task in tasks if _is_stamped(task.headers, stamps)]
    return _withdrawn(app, store, stamped)


def _withdrawn(app: Celery, store: MessageStore, tasks: Iterable[WaitingTask]) -> list[str]:
    """Withdraws tasks before their ETA: no worker will get them. Returns the ids of those whose wait had not ended."""
    ended = []
    for task in tasks:
        if greenlets.off_the_hub(store.cancel, TOPIC, records.key_of(task.task_id)):
            tell_cancelled(app, task)
            ended.append(task.task_id)
    return ended


def _is_stamped(headers: Mapping[str, Any], stamps: Mapping[str, Any]) -> bool:
    """Celery's own rule (`Request.revoked`)."""
    own = headers.get("stamps") or {}
    for name in headers.get("stamped_headers") or ():
        if name in stamps and any(value in _listed(stamps[name]) for value in _listed(own.get(name))):
            return True
    return False


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def note(app: Celery, event: str, task: WaitingTask, **details: Any) -> None:
    """Enters an event of a waiting task into the lifecycle log."""
    life, headers = recorder.log_of(app), task.headers
    if life is None:
        return
    try:
        facts = {
            "parent_id": headers.get("parent_id"), "eta": headers.get("eta"), "retries": headers.get("retries") or None,
            "queue": task.message.routing_key, "exchange": task.message.exchange, **details,
        }  # fmt: skip
        life.append(event, task.task_id, task.name, headers.get("root_id"), headers.get("group"), **facts)
    except Exception as error:  # noqa: BLE001 - the log is a witness only
        life.trouble(error)
