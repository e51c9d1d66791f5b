"""The display of one entry of a history: as a line for people, as JSON for programs."""

from __future__ import annotations

import json
from typing import Any

from celery import states

from cystore.celery.base.events import Event
from cystore.celery.commands.shared import task_display
from cystore.celery.history import Transition
from cystore.operate.output import one_line, time_text, write_json, write_line

SHOWN = (
    "worker",
    "queue",
    "runtime",
    "retries",
    "exception",
    "cause",
)  # details of an event on a line for people
CALL = ("args", "kwargs")  # of an event, or of a result with `result_extended`: on a line too, shortened
RESULT_SHOWN = (
    "result",
    "traceback",
    "worker",
    "retries",
    "queue",
    *CALL,
)  # fields of a result's meta for programs


def entry_object(entry: Event | Transition) -> dict[str, Any]:
    """An entry for programs: the common fields, then an event's details, or a result's."""
    common: dict[str, Any] = {
        "kind": "event" if isinstance(entry, Event) else "result",
        "time_ms": entry.time_ms,
        "time": time_text(entry.time_ms),
        "task_id": entry.task_id,
        "state": entry.state,
        "name": entry.name,
        "physical_offset": entry.physical_offset,
    }
    if entry.store:
        common["store"] = entry.store
    if isinstance(entry, Event):
        return {**common, "root_id": entry.root_id, "group_id": entry.group_id, **entry.details}
    meta = entry.meta
    told: dict[str, Any] = {key: meta[key] for key in RESULT_SHOWN if key in meta}
    return {**common, "content_type": entry.content_type, "size_bytes": entry.size_bytes, **told}


def entry_line(entry: Event | Transition, *, full: bool = False, name: str | None = None) -> str:
    """An entry for people; `name` is that of its task, for an entry that does not know it."""
    shown = str if full else task_display.short
    words = [
        time_text(entry.time_ms),
        f"{entry.state or '?':<14}" if isinstance(entry, Event) else f"={entry.state or '?':<13}",
        entry.task_id or "-",
        entry.name or name or "-",
    ]
    if isinstance(entry, Event):
        details = entry.details
        words += [f"{key}={shown(str(details[key]))}" for key in CALL if _says(details.get(key))]
        words += [f"{key}={details[key]}" for key in SHOWN if key in details]
    else:
        words.append(f"{entry.size_bytes} bytes of {entry.content_type}" if entry.content_type else "")
        meta = entry.meta
        words += [f"{key}={shown(repr(meta[key]))}" for key in CALL if meta.get(key)]
        if entry.state in states.EXCEPTION_STATES:
            words += [f"exception={shown(entry.error)}"] if entry.error else []
        elif meta.get("result") is not None:
            words.append(f"result={shown(json.dumps(meta['result'], ensure_ascii=False))}")
    if entry.store:
        words.append(f"store={entry.store}")
    return one_line("  ".join(words)).rstrip()


def _says(text: object) -> bool:
    """Whether the kept text of arguments says anything: a call without arguments does not."""
    return text not in (None, "()", "{}")


def write_entry(
    entry: Event | Transition,
    *,
    as_json: bool,
    with_traceback: bool = False,
    full: bool = False,
    name: str | None = None,
) -> None:
    """One entry on one line; its traceback below it, if wanted."""
    if as_json:
        told = entry_object(entry)
        write_json(told if told["name"] or not name else {**told, "name": name})
        return
    write_line(entry_line(entry, full=full, name=name))
    if with_traceback:
        for line in (entry.traceback or "").rstrip().splitlines():
            write_line(f"    {one_line(line)}")
