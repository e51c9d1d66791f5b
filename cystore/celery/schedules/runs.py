"""Due schedules are run: a part of the duty `deliver_delayed`.

The store delivers a due schedule into the queue 0 of `celery_beat`. The holder of the duty's lease puts three records
at once: the schedule with its next due time, a line of its history (topic `celery_beat_runs`), and the message of the
task into `celery_eta`, from where it goes to the broker. A kill leaves all three or none, so no run is lost and none
happens twice, however many workers and beats there are. The task's id comes from the schedule's name and the due time.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from celery import Celery

from cystore import Message
from cystore.celery import homes
from cystore.celery.base import records
from cystore.celery.base.identity import store_id_of
from cystore.celery.eta import delivered, publishing, waiting
from cystore.celery.schedules import due_times, entries
from cystore.celery.schedules.due_times import ScheduleError
from cystore.celery.schedules.entries import ALL, RUNS, SKIP, TOPIC, Entry
from cystore.clock import now_ms

if TYPE_CHECKING:
    from cystore import MessageStore

log = logging.getLogger("cystore.celery")

STEP_SCHEDULES = 100  # run in one step
LATE_MS = 60_000  # a run that is later than this was missed
SENT, MISSED, FAILED = "SENT", "MISSED", "FAILED"  # tags of the history


def is_due(store: MessageStore) -> bool:
    """Whether a delivered schedule was not run yet."""
    return delivered.is_there(store, TOPIC)


def run_due(app: Celery, store: MessageStore) -> tuple[int, bool]:
    """Runs delivered schedules; returns their number, and whether more are there. Raises the store's errors."""

    def handle(message: Message) -> bool:
        try:
            entry = entries.parse(message)
        except ScheduleError as error:
            log.error("%s: %s; it is left out", store.path, error)
            return True
        try:
            _run(app, store, entry)
        except ScheduleError as error:  # this process does not know the time zone, or lacks the package ephem
            log.error("schedule %s is paused: %s", entry.name, error)
            paused = entries.message_of(store, replace(entry, serial=entry.serial + 1, enabled=False))
            store.put_many([paused, _line(entry, FAILED, None, str(error))])
        return True

    done, _, more = delivered.take(store, TOPIC, STEP_SCHEDULES, handle)
    return done, more


def _run(app: Celery, store: MessageStore, entry: Entry) -> None:
    known = entries.newest(store, entry.name)
    if known is None or known.serial != entry.serial or entry.deleted:
        return  # it was changed, or a process was killed after it ran this one
    now = now_ms()
    if not entry.enabled or entry.due_ms > now:
        store.put_many([entries.message_of(store, replace(entry, serial=entry.serial + 1))])
        return
    late = now - entry.due_ms > LATE_MS
    if late and entry.missed != ALL:
        following = due_times.next_later(entry.when, entry.due_ms, now)
    else:
        following = due_times.next_after(entry.when, entry.due_ms)
    new = replace(
        entry,
        serial=entry.serial + 1,
        runs=entry.runs + 1,
        due_ms=following or entry.due_ms,
        deleted=following is None,
    )
    if late and entry.missed == SKIP:
        messages = [_line(entry, MISSED, None)]
        new = replace(new, runs=entry.runs)
    else:
        messages = _sent(app, store, entry)
    store.put_many([entries.message_of(store, new), *messages], flush=homes.safe_flush(store, "sync"))


def _sent(app: Celery, store: MessageStore, entry: Entry) -> list[Message]:
    """The message of the task, for the broker, and a line of the history. A call that cannot be made is a line that
    says so: the schedule goes on."""
    task_id = str(uuid5(UUID(store_id_of(store)), f"{entry.name}:{entry.due_ms}"))
    headers = {
        **(entry.options.get("headers") or {}),
        "celery_beat_task": True,
    }  # as Celery's own beat marks it
    try:
        record = publishing.message_of(
            app,
            entry.task,
            entry.args,
            dict(entry.kwargs),
            {**entry.options, "headers": headers, "task_id": task_id},
        )
    except Exception as error:  # noqa: BLE001 - arguments of the call, routes of the app: anything
        log.error("schedule %s cannot send %s: %s: %s", entry.name, entry.task, type(error).__name__, error)
        return [_line(entry, FAILED, task_id, f"{type(error).__name__}: {error}"[:1000])]
    message = Message(
        topic=waiting.TOPIC, body=record, queue_id=delivered.QUEUE_ID, keys=(records.key_of(task_id),),
        properties={"task": records.kept_name(entry.task)},
    )  # fmt: skip
    return [message, _line(entry, SENT, task_id)]


def _line(entry: Entry, outcome: str, task_id: str | None, error: str | None = None) -> Message:
    fields: dict[str, Any] = {"v": 1, "name": entry.name, "task": entry.task, "due_ms": entry.due_ms}
    fields |= {name: value for name, value in (("task_id", task_id), ("error", error)) if value}
    keys = [records.key_of(entry.name), *([records.key_of(task_id)] if task_id else [])]
    return Message(topic=RUNS, body=json.dumps(fields).encode(), keys=tuple(keys), tags=outcome)
