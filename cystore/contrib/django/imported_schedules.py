"""The schedules of django-celery-beat, as schedules in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.apps import apps

from cystore import MessageStore
from cystore.celery.schedules import due_times, entries
from cystore.celery.schedules.due_times import ScheduleError
from cystore.clock import now_ms

THEIRS = "django_celery_beat"
CLEANUP = "celery.backend_cleanup"  # the store cleans itself
UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000, "microseconds": 0.001}
OPTIONS = ("queue", "exchange", "routing_key", "priority")


@dataclass
class Imported:
    """Counts of the rows, by their ends."""

    schedules: int = 0
    known: int = 0  # the store has one of that name
    over: int = 0  # it would never run again
    refused: int = 0


def import_schedules(
    store: MessageStore,
    *,
    using: str = "default",
    replace_known: bool = False,
    note: Callable[[str], object] = lambda text: None,
) -> Imported:
    """Takes over the schedules of a database, those that are disabled as paused ones. Stop their scheduler before.
    Raises the errors of the store and of Django."""
    counts = Imported()
    model = apps.get_model(THEIRS, "PeriodicTask")
    rows = model._default_manager.using(using).select_related("interval", "crontab", "solar", "clocked")
    for row in rows.order_by("name"):
        if row.task == CLEANUP:
            continue
        if entries.get(store, row.name) is not None and not replace_known:
            counts.known += 1
            continue
        try:
            is_kept = _import(store, row)
        except (ScheduleError, ValueError) as error:
            counts.refused += 1
            note(f"schedule {row.name!r}: {error}")
            continue
        counts.schedules += is_kept
        counts.over += not is_kept
    return counts


def _import(store: MessageStore, row: Any) -> bool:
    """Puts one; False if it would never run again. Raises ScheduleError and ValueError."""
    now = now_ms()
    when = _when(row)
    begin_ms = max(now, _ms(row.start_time) or 0)
    last_ms = _ms(row.last_run_at)
    due_ms = _due_ms(when, last_ms, begin_ms)
    if row.one_off and "at_ms" not in when and due_ms is not None:
        when = {"at_ms": due_ms}  # the first time is the only one
    ran = row.one_off and not row.enabled and row.total_run_count
    expired = row.expires is not None and (_ms(row.expires) or 0) <= now
    if ran or expired or due_ms is None or ("at_ms" in when and when["at_ms"] <= now and last_ms is not None):
        return False
    made = entries.add(
        store, row.name, row.task, when, args=json.loads(row.args or "[]"), kwargs=json.loads(row.kwargs or "{}"),
        options=_options(row),
    )  # fmt: skip
    wanted = replace(made, due_ms=due_ms, enabled=row.enabled, runs=row.total_run_count)
    if wanted != made:
        entries.change(store, wanted)
    return True


def _when(row: Any) -> Mapping[str, Any]:
    """The map of `due_times`. Raises ScheduleError."""
    if row.interval is not None:
        return {
            "every_ms": max(
                round(row.interval.every * UNIT_MS[row.interval.period]), due_times.EVERY_MS_LEAST
            )
        }
    if row.crontab is not None:
        words = (str(getattr(row.crontab, field)).replace(" ", "") for field in due_times.FIELDS)
        return due_times.checked({"crontab": " ".join(words), "timezone": str(row.crontab.timezone)})
    if row.solar is not None:
        place = [row.solar.event, float(row.solar.latitude), float(row.solar.longitude)]
        return due_times.checked({"solar": place})
    if row.clocked is not None:
        return {"at_ms": _ms(row.clocked.clocked_time)}
    raise ScheduleError("it has no interval, crontab, solar or clocked schedule")


def _due_ms(when: Mapping[str, Any], last_ms: int | None, begin_ms: int) -> int | None:
    """The next due time; an interval keeps its grid."""
    if "at_ms" in when:
        return int(when["at_ms"])
    if "every_ms" in when and last_ms is not None:
        due_ms = last_ms + int(when["every_ms"])
        return due_ms if due_ms >= begin_ms else due_times.next_later(when, last_ms, begin_ms)
    return due_times.next_after(when, begin_ms)


def _options(row: Any) -> dict[str, Any]:
    options = {name: getattr(row, name) for name in OPTIONS if getattr(row, name) is not None}
    headers = json.loads(row.headers or "{}")
    if headers:
        options["headers"] = headers
    if row.expire_seconds is not None:
        options["expires"] = row.expire_seconds
    elif row.expires is not None:
        options["expires"] = row.expires.isoformat()
    return options


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
