"""Schedules that the stores keep, the next one first, and their past runs."""

from __future__ import annotations

from typing import Any

from cystore import MessageStore
from cystore.celery.base.reading import Source
from cystore.celery.schedules import due_times, entries
from cystore.celery.schedules.entries import Entry
from cystore.celery.schedules.past_runs import past_runs
from cystore.operate.output import time_text
from cystore.web.answers.open_stores import stores_of
from cystore.web.answers.task_rows import Texts

SCHEDULES_MOST = 10_000
RUNS_SHOWN = 50


def schedules_of(source: Source, texts: Texts) -> list[dict[str, Any]]:
    """All schedules."""
    found = [(entry, store) for store in stores_of(source) for entry in entries.listed(store)]
    found.sort(key=lambda one: (not one[0].enabled, one[0].due_ms, one[0].name))
    return [_row(entry, store, texts) for entry, store in found[:SCHEDULES_MOST]]


def schedule_of(source: Source, name: str, texts: Texts) -> dict[str, Any] | None:
    """One schedule with its past runs, newest first; of one that was deleted the runs alone. None without both."""
    for store in stores_of(source):
        entry = entries.get(store, name)
        history = [
            {
                "due": time_text(one["due_ms"]),
                "sent": time_text(one["sent_ms"]),
                "run": one["run"],
                "task_id": one.get("task_id"),
                "outcome": one["outcome"],
                "error": texts.shown(one.get("error")),
            }
            for one in past_runs(store, name, RUNS_SHOWN)
        ]
        if entry is not None:
            return {**_row(entry, store, texts), "history": history}
        if history:
            return {"name": name, "store": str(store.path), "history": history}
    return None


def _row(entry: Entry, store: MessageStore, texts: Texts) -> dict[str, Any]:
    return {
        "name": entry.name,
        "task": entry.task,
        "schedule": due_times.text_of(entry.when),
        "due": time_text(entry.due_ms) if entry.enabled else None,
        "enabled": entry.enabled,
        "missed": entry.missed,
        "runs": entry.runs,
        "source": entry.source,
        "queue": entry.options.get("queue") if isinstance(entry.options.get("queue"), str) else None,
        **_arguments(entry, texts),
        "store": str(store.path),
    }


def _arguments(entry: Entry, texts: Texts) -> dict[str, Any]:
    """The arguments, as far as the app's settings let them be shown: without the app nobody knows what to hide."""
    if texts.redaction is None:
        return {"args": None, "kwargs": None}
    args, kwargs = texts.redaction.values(entry.task, entry.args, dict(entry.kwargs))
    return {"args": args, "kwargs": kwargs}
