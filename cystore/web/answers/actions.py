"""Actions on tasks, schedules and stores, each by its name. For programs that act for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery

from cystore import MessageStore, StoreConfigError
from cystore.celery.backend import CystoreBackend
from cystore.celery.base import events
from cystore.celery.base.reading import Source
from cystore.celery.eta import waiting
from cystore.celery.lifecycle import reruns
from cystore.celery.lifecycle.reruns import RerunError
from cystore.celery.lifecycle.task_lives import Life
from cystore.celery.schedules import entries
from cystore.web.answers.open_stores import stores_of

RERUN, REVOKE, CANCEL, FIRE = "rerun", "revoke", "cancel", "fire"
ACTIONS = (RERUN, REVOKE, CANCEL, FIRE)
ON_SCHEDULES: dict[str, Callable[[MessageStore, str], bool]] = {
    "run": entries.run_now,
    "pause": entries.pause,
    "resume": entries.resume,
    "delete": entries.delete,
}
CLEAN, PURGE = "clean", "purge"
SIGNAL = "SIGTERM"
PLUGINS = "celery_"  # topics of the plugin


class ActionError(Exception):
    """An action that makes no sense for this task; the text has the reason."""


def possible(life: Life) -> list[str]:
    """The actions that make sense for a task: one that has ended cannot be stopped, and only one that waits in the
    store is fired."""
    if life.has_ended:
        return [RERUN]
    return list(ACTIONS) if life.stage == events.SCHEDULED else [RERUN, REVOKE, CANCEL]


def act(app: Celery, source: Source, life: Life | None, task_id: str, action: str) -> dict[str, Any]:
    """Does it, and gives facts for the answer. `rerun` sends the kept message again under a new id; `revoke` keeps a
    task from beginning; `cancel` also ends it where it runs; `fire` makes one that waits for its ETA due now. A task
    without events (`life` None) can still wait for its ETA. Raises ActionError, StoreError and the broker's errors."""
    if life is not None and action in (REVOKE, CANCEL) and life.has_ended:
        raise ActionError(f"{task_id} has ended ({life.outcome or life.result_state}): it cannot be stopped")
    if action == RERUN:
        if life is None:
            raise ActionError(f"{task_id}: the log has no event of it, so its message is not kept")
        try:
            rerun = reruns.prepare(source, life, same_id=False)
        except RerunError as error:
            raise ActionError(str(error)) from error
        reruns.send(app, rerun)
        return {"new_id": rerun.task_id, "notes": rerun.notes}
    if action == FIRE:
        if not waiting.fire(app, _apps_store(app), task_id):
            raise ActionError(f"{task_id} does not wait for its ETA in the store of the app")
        return {}
    if waits(source, task_id) and waiting.cancel_all(app, _apps_store(app), [task_id]):
        return {"notes": ["it waited for its ETA, and was withdrawn"]}
    app.control.revoke(task_id, terminate=action == CANCEL, signal=SIGNAL)
    return {}


def act_on_schedule(app: Celery, name: str, action: str) -> bool:
    """Runs a schedule now, stops it, lets it run again or deletes it; False if the app's store has none of that name.
    Raises ActionError, StoreError."""
    return ON_SCHEDULES[action](_apps_store(app), name)


def clean(app: Celery) -> dict[str, Any]:
    """Removes what has expired from the app's store. Raises ActionError, StoreError."""
    return {"segments": _apps_store(app).clean().segments}


def purge(app: Celery, topic: str) -> dict[str, Any]:
    """Removes the messages of a topic of the app's store, all that are in its queues now. Raises ActionError,
    StoreError."""
    if topic.startswith(PLUGINS):
        raise ActionError(f"{topic} has what became of tasks: clean removes it when it has expired")
    store = _apps_store(app)
    queues = store.topics().get(topic)
    if queues is None:
        raise ActionError(f"{store.path} has no topic {topic!r}")
    messages = sum(one.max_offset - one.min_offset for one in queues.values())
    try:
        store.delete_topic(topic)
    except StoreConfigError as error:  # the store writes it for itself
        raise ActionError(str(error)) from error
    return {"messages": messages}


def waits(source: Source, task_id: str) -> bool:
    """Whether a task waits, or waited, for its ETA in one of the stores."""
    return any(waiting.last_of(store, task_id) is not None for store in stores_of(source))


def _apps_store(app: Celery) -> MessageStore:
    """The store that the app's processes write to."""
    backend = app.backend
    store = waiting.store_of(backend) if isinstance(backend, CystoreBackend) else None
    if store is None:
        raise ActionError(
            f"the app has no store here that can be written: its result_backend is {backend.as_uri()}"
        )
    return store
