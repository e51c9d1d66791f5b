"""The end of a task and the acknowledgement of its message are one record, if the broker is the same store.

A worker that acknowledges late (`acks_late`) tells so after the result is stored: a kill in between would run a
finished task again. So the record of the result settles the message, too (`cystore.consumers.settled`), and the later
acknowledgement finds it settled. That holds where nothing but the acknowledgement follows the result: a task with code
of its own for its end (`on_success`, `on_failure`, `after_return`), or a failure on which others wait, is
acknowledged when that is done.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import states
from celery._state import get_current_task

from cystore import StoreError
from cystore.celery import homes
from cystore.celery.base.identity import is_replica
from cystore.celery.base.records import CLAIM, key_of
from cystore.celery.stores import compacts_results

if TYPE_CHECKING:
    from cystore import MessageStore
    from cystore.celery.backend import CystoreBackend
    from cystore.consumers.claims import Claim, ClaimedQueue, Owner

log = logging.getLogger("cystore.celery")

OURS = (
    "celery.app.task",
    "cystore.celery.once",
)  # modules whose methods do nothing that has to be done again


class Held(NamedTuple):
    """The claim of a message of a worker, for the process that runs its task."""

    store: str
    group: str
    topic: str
    queue_id: int
    claim: Claim
    owner: int


ends: ContextVar[tuple[str, Held] | None] = ContextVar("cystore_ends", default=None)  # with the task's key
_queues: weakref.WeakKeyDictionary[MessageStore, dict[tuple[str, str, int], ClaimedQueue]] = (
    weakref.WeakKeyDictionary()
)


def ending(request: Any, held: Held | None) -> AbstractContextManager[None]:
    """Around the marking of a task as ended, in the process that ran it. `held` is the answer of `settles`."""
    return nullcontext() if held is None else _ending(key_of(request.id), held)


@contextmanager
def _ending(key: str, held: Held) -> Iterator[None]:
    token = ends.set((key, held))
    try:
        yield
    finally:
        ends.reset(token)


def settles(request: Any, state: str) -> Held | None:
    """The claim that a state settles; None for most."""
    found = (getattr(request, "properties", None) or {}).get(CLAIM)
    held = Held(*found) if isinstance(found, tuple) else None  # a message that comes from elsewhere has none
    task = get_current_task() if held is not None else None
    if task is None or not task.acks_late or task.request.id != request.id or request.is_eager:
        return None
    if state == states.SUCCESS:
        return held if _is_over(task, "on_success") else None
    acknowledges = getattr(task, "acks_on_failure", None)
    if acknowledges is None:
        acknowledges = task.acks_on_failure_or_timeout
    told = request.errbacks or request.chain or request.chord
    return held if acknowledges and not told and _is_over(task, "on_failure") else None


def _is_over(task: Any, method: str) -> bool:
    """Whether the task has no code of its own that follows its state."""
    return all(getattr(task, name).__module__ in OURS for name in (method, "after_return"))


@contextmanager
def together(backend: CystoreBackend, home: str | None, record: dict[str, Any]) -> Iterator[None]:
    """Around the append of a state within `ending`: if it ends the task, it settles the task's message."""
    key, held = ends.get() or ("", None)
    if held is None or key not in record["keys"] or home not in (None, homes.own_id(backend)):
        yield
        return
    queue = properties = None
    with _left_to_the_owner():
        queue = _queue(backend.store, held)
        properties = None if queue is None else queue.begin_settling(held.claim, held.owner)
    record["properties"].update(properties or {})
    yield
    if queue is not None and properties:
        with _left_to_the_owner():
            queue.end_settling(held.claim, held.owner)


@contextmanager
def _left_to_the_owner() -> Iterator[None]:
    """A task does not fail because its message cannot be settled here: its worker acknowledges it as well."""
    try:
        yield
    except StoreError as error:
        log.warning("a result does not settle the message of its task: %s", error)


def _queue(store: MessageStore, held: Held) -> ClaimedQueue | None:
    if held.store != str(store.path) or store.config.read_only or is_replica(store):
        return None
    if compacts_results(store):
        return (
            None  # such a record may expire before an older message is settled, and readers then leave it out
        )
    known, key = _queues.setdefault(store, {}), (held.group, held.topic, held.queue_id)
    if key not in known:
        from cystore.consumers.claims import (
            ClaimedQueue,
        )  # many workers open their store later, or have another broker

        known[key] = ClaimedQueue(store, _nobody, *key)
    return known[key]


def _nobody() -> Owner:
    raise AssertionError("a process that runs tasks claims nothing for itself")


os.register_at_fork(after_in_child=_queues.clear)
