"""ETAs of publishers without a store on their host: an ordinary task brings the message to the workers of its home.

Until one of them takes it, the message waits in the broker, in the queue of that store. A redelivered one is put once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery, shared_task

from cystore import MessageIllegalError, StoreError
from cystore.celery import homes
from cystore.celery.base import events, records
from cystore.celery.base.queues import declared
from cystore.celery.eta import waiting
from cystore.celery.eta.waiting import NotATaskError
from cystore.layout import SCHEDULE_TOPIC

KEEP, CANCEL = "cystore.eta_keep", "cystore.eta_cancel"
OPTIONS: dict[str, Any] = {
    "bind": True, "ignore_result": True, "acks_late": True, "reject_on_worker_lost": True, "max_retries": None,
}  # fmt: skip


def send(app: Celery, home: str, record: bytes, due_ms: int, producer: Any = None) -> None:
    """Asks the workers of a home to keep a message until it is due, by a producer that the caller has already: waiting
    for another one may last for ever. Raises the broker's errors."""
    _ask(app, home, KEEP, (home, record.decode("utf-8", "surrogatepass"), due_ms), producer)


def send_cancel(app: Celery, home: str, task_ids: Sequence[str], stamps: Mapping[str, Any]) -> None:
    """Asks the workers of a home to withdraw tasks, by ids and by stamped headers. Raises the broker's errors."""
    _ask(app, home, CANCEL, (home, list(task_ids), dict(stamps)))


def _ask(app: Celery, home: str, name: str, arguments: tuple[Any, ...], producer: Any = None) -> None:
    app.send_task(
        name, arguments, queue=declared(app, home), serializer="json", ignore_result=True, add_to_parent=False,
        headers={homes.HOME: home}, producer=producer,
    )  # fmt: skip


def _store_of(task: Any, home: Any) -> Any:
    backend = task.app.backend
    if not hasattr(backend, "of_home") or homes.own_id(backend) != home:
        raise records.illegal("home", f"is {home!r}, and this worker has another store")
    return backend.store


@shared_task(name=KEEP, **OPTIONS)
def keep(self: Any, home: Any = None, record: Any = None, due_ms: Any = None) -> bool:
    """Puts a message that a publisher sent here; False if an earlier delivery did. Raises MessageIllegalError for what
    `send` does not send; other errors of the store are retried."""
    from cystore.system.store_lock import locked_byte  # only a home of other hosts' tasks needs it

    store = _store_of(self, home)
    if not isinstance(record, str) or type(due_ms) is not int or due_ms < 0:
        raise records.illegal("record", "must be a text, with a due time in ms")
    body = record.encode("utf-8", "surrogatepass")
    try:
        task = waiting.parse(body, due_ms, 0)
    except NotATaskError as error:
        raise records.illegal("record", f"is no message of a task: {error}") from error
    try:
        lock = zlib.crc32(task.task_id.encode("utf-8", "surrogatepass")) % homes.LOCKS
        with locked_byte(store.path / "config" / "homeRecord.lock", lock):
            known = store.query(SCHEDULE_TOPIC, records.key_of(task.task_id))
            if any(bytes(one.body) == body for one in known):
                return False
            waiting.put(store, task, body)
    except MessageIllegalError as error:  # it would be later, too: its publisher learns it from its state
        waiting.fail(self.app, task, error)
        raise
    except StoreError as error:
        raise self.retry(exc=error, countdown=min(2**self.request.retries, homes.RETRY_AT_MOST_S)) from error
    waiting.note(self.app, events.SCHEDULED, task)
    return True


@shared_task(name=CANCEL, **OPTIONS)
def cancel(self: Any, home: Any = None, task_ids: Any = None, stamps: Any = None) -> list[str]:
    """Withdraws tasks that wait here; returns their ids."""
    store = _store_of(self, home)
    if not isinstance(task_ids, list) or not isinstance(stamps, dict):
        raise records.illegal("task_ids", "must be a list, with a map of stamps")
    try:
        found = waiting.cancel_all(self.app, store, [str(one) for one in task_ids])
        return found + (waiting.cancel_stamped(self.app, store, stamps) if stamps else [])
    except StoreError as error:
        raise self.retry(exc=error, countdown=min(2**self.request.retries, homes.RETRY_AT_MOST_S)) from error
