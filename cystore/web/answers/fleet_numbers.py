"""Numbers about the fleet, from one pass backwards over the lifecycle log: over time, by name, by cause.

A pass ends when its time is over; its answer then says from which time on it counted. Memory grows with the buckets,
names, workers and causes, which are bounded, and with the tasks whose STARTED waits for its SENT.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.history import Transition
from cystore.celery.lifecycle import task_lives
from cystore.celery.lifecycle.statistics import NameStats, Runtimes
from cystore.celery.lifecycle.task_lives import number_of, text_of
from cystore.clock import monotonic_s, now_ms
from cystore.operate.output import time_text
from cystore.web.answers.task_rows import Texts

TIME_S = 2.0
LOOK_EVERY = 64
BUCKETS_MOST, BUCKETS = 1000, 60
NAMES_MOST = 1000
SPAN_MS = 3_600_000
CAUSE = re.compile(r"\s*([\w.]+)")
OTHER = "(other names)"

# A count of a bucket, and the events that count.
COUNTED: dict[str, tuple[str, ...]] = {
    "sent": (events.SENT,),
    "started": (events.STARTED,),
    "succeeded": (events.SUCCEEDED,),
    "failed": events.FAILURES,
    "retried": (events.RETRIED,),
    "revoked": (events.REVOKED, events.CANCELLED),
}
COLUMN_OF = {event: column for column, kinds in COUNTED.items() for event in kinds}


class Pass:
    """Entries until the time of the pass is over; `partial` says whether it was, `reached_ms` how far it came."""

    def __init__(self, newest_first: Iterable[Event | Transition], time_s: float) -> None:
        self._entries, self._until_s = newest_first, monotonic_s() + time_s
        self.partial, self.reached_ms = False, 0

    def __iter__(self) -> Iterator[Event | Transition]:
        for number, entry in enumerate(self._entries):
            if number % LOOK_EVERY == LOOK_EVERY - 1 and monotonic_s() > self._until_s:
                self.partial = True
                return
            self.reached_ms = entry.time_ms
            yield entry

    def told(self, begin_ms: int) -> dict[str, Any]:
        """The fields of an answer that say what was counted."""
        counted = self.reached_ms if self.partial else begin_ms
        return {"since": time_text(counted), "partial": self.partial}


@dataclass
class _Bucket:
    counts: Counter[str] = field(default_factory=Counter)
    runs: Runtimes = field(default_factory=Runtimes)
    waits: Runtimes = field(default_factory=Runtimes)

    def told(self, time_ms: int) -> dict[str, Any]:
        return {
            "time": time_text(time_ms),
            **{name: self.counts[name] for name in COUNTED},
            "run_s": _percentiles(self.runs),
            "wait_s": _percentiles(self.waits),
        }


def _percentiles(times: Runtimes) -> dict[str, float | None]:
    return {f"p{percent}": times.percentile(percent) for percent in (50, 95, 99)}


def stats_of(source: Source, begin_ms: int | None, end_ms: int | None, step_ms: int | None) -> dict[str, Any]:
    """Counts and times in buckets, and by name. Raises ValueError for too many buckets."""
    end_ms = now_ms() if end_ms is None else max(0, min(end_ms, now_ms()))
    begin_ms = end_ms - SPAN_MS if begin_ms is None else max(0, begin_ms)
    span_ms = max(1, end_ms - begin_ms)
    step_ms = step_ms or max(1000, -(-span_ms // BUCKETS))
    first_ms = begin_ms - begin_ms % step_ms
    count = (end_ms - first_ms) // step_ms + 1
    if count > BUCKETS_MOST:
        raise ValueError(
            f"step: {count} buckets are more than {BUCKETS_MOST}: give a wider step, or a later since"
        )
    buckets = [_Bucket() for _ in range(max(0, count))]
    names: dict[str, NameStats] = {}
    began: task_lives.Remembered[tuple[int, _Bucket]] = task_lives.Remembered()
    read = Pass(history.events(source, begin_ms=begin_ms, end_ms=end_ms), TIME_S)
    for event in read:
        assert isinstance(event, Event)
        bucket = buckets[(event.time_ms - first_ms) // step_ms]
        _count(event, bucket, names)
        _wait(event, bucket, began)
    return {
        **read.told(begin_ms),
        "until": time_text(end_ms),
        "step_s": step_ms / 1000,
        "buckets": [bucket.told(first_ms + number * step_ms) for number, bucket in enumerate(buckets)],
        "names": [_name(one) for one in sorted(names.values(), key=lambda one: (-one.count, one.name))],
    }


def _count(event: Event, bucket: _Bucket, names: dict[str, NameStats]) -> None:
    column = COLUMN_OF.get(event.event or "")
    if column is None or (column == "failed" and event.details.get("requeue")):
        return
    bucket.counts[column] += 1
    if column not in ("succeeded", "failed", "retried"):
        return
    name = event.name or ""
    if name not in names and len(names) >= NAMES_MOST:
        name = OTHER
    names.setdefault(name, NameStats(name)).add(event)
    runtime = number_of(event.details, "runtime")
    if runtime is not None and column != "retried":
        bucket.runs.add(runtime)


def _wait(event: Event, bucket: _Bucket, began: task_lives.Remembered[tuple[int, _Bucket]]) -> None:
    """A try waited from its SENT, or from the time at which it was due, to its STARTED."""
    if event.event not in (events.SENT, events.STARTED) or not event.task_id:
        return
    key = f"{int(number_of(event.details, 'retries') or 0)} {event.task_id}"
    if event.event == events.STARTED:
        began.add(key, (event.time_ms, bucket))
        return
    started = began.pop(key)
    if started is not None:
        due_ms = task_lives.moment_ms(text_of(event.details, "eta")) or 0
        started[1].waits.add(max(0, started[0] - max(event.time_ms, due_ms)) / 1000)


def _name(one: NameStats) -> dict[str, Any]:
    return {
        "name": one.name,
        "succeeded": one.succeeded,
        "failed": one.failed,
        "retried": one.retried,
        "failure_rate": one.failure_rate,
        "run_s": _percentiles(one.runtimes),
    }


# ---------------------------------------------------------------------------------------------- failures


def failures_of(
    source: Source, name: str | None, begin_ms: int | None, limit: int, texts: Texts
) -> dict[str, Any]:
    """Failed runs by the task's name and the class of the exception, the most frequent first."""
    begin_ms = now_ms() - 24 * SPAN_MS if begin_ms is None else max(0, begin_ms)
    causes: dict[tuple[str, str], dict[str, Any]] = {}
    read = Pass(history.failures(source, name=name, begin_ms=begin_ms), TIME_S)
    for entry in read:
        error = _error_of(entry)
        key = (entry.name or "", _cause(error) or entry.state or "")
        cause = causes.get(key)
        if cause is None:
            if len(causes) >= NAMES_MOST:
                continue
            cause = causes[key] = {
                "name": key[0],
                "cause": key[1],
                "event": entry.state,
                "count": 0,
                "newest": time_text(entry.time_ms),
                "newest_id": entry.task_id,
                "error": texts.shown(error),
            }
        cause["count"] += 1
        cause["oldest"] = time_text(entry.time_ms)
    ordered = sorted(causes.values(), key=lambda one: (-one["count"], one["name"], one["cause"]))
    return {**read.told(begin_ms), "failures": ordered[:limit]}


def _error_of(entry: Event | Transition) -> str | None:
    return text_of(entry.details, "exception") if isinstance(entry, Event) else entry.error


def _cause(error: str | None) -> str | None:
    found = CAUSE.match(error or "")
    return found[1] if found else None
