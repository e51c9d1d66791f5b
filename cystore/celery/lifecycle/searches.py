"""Searches that read the lifecycle log once, in bounded memory: tasks by the text of their arguments or errors, and
the slowest ones."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.history import Transition
from cystore.celery.lifecycle.task_lives import (
    ENDS,
    Life,
    Remembered,
    entries_of,
    folded,
    life_of,
    moment_ms,
    number_of,
    text_of,
)

Sort = Literal["run", "wait"]
SLOW_KINDS: dict[Sort, tuple[str, ...]] = {"run": ENDS, "wait": (events.SENT, events.STARTED)}


# ---------------------------------------------------------------------------------------------- by text


class Wanted:
    """Texts to be found: `args` in the arguments, `error` in the exception or its traceback. None stands for any."""

    def __init__(self, args: str | None, error: str | None, *, ignore_case: bool = False) -> None:
        self._fold: Callable[[str], str] = str.casefold if ignore_case else str
        self.args = None if args is None else self._fold(args)
        self.error = None if error is None else self._fold(error)

    def has_args(self, entry: Event | Transition) -> bool:
        """Whether the arguments of an entry contain the text."""
        return self.args is not None and self._within(self.args, _args_of(entry))

    def has_error(self, entry: Event | Transition) -> bool:
        """Whether the error of an entry contains the text."""
        return self.error is not None and self._within(self.error, _error_of(entry))

    def _within(self, text: str, details: Iterable[object]) -> bool:
        return any(text in self._fold(one) for one in details if isinstance(one, str))


def _args_of(entry: Event | Transition) -> Iterator[object]:
    details = entry.details if isinstance(entry, Event) else entry.meta
    for field in ("args", "kwargs"):
        value = details.get(field)
        yield value if isinstance(entry, Event) or value is None else repr(value)


def _error_of(entry: Event | Transition) -> Iterator[object]:
    if isinstance(entry, Event):
        details = entry.details
        yield details.get("exception")
        yield details.get("traceback")
        return
    result, traceback = entry.result, entry.traceback
    if isinstance(result, dict) and "exc_type" in result:
        yield f"{result['exc_type']}: {result.get('exc_message')}"
    yield traceback


def find(store: Source, newest_first: Iterable[Event | Transition], wanted: Wanted) -> Iterator[Life]:
    """Tasks with the texts in their entries, newest match first. Both texts: each in some entry of the task."""
    met = Remembered()
    first, other = (wanted.has_args, None) if wanted.error is None else (wanted.has_error, wanted.has_args)
    for entry in newest_first:
        task_id = entry.task_id
        if not task_id or task_id in met or not first(entry):
            continue
        met.add(task_id)
        found = entries_of(store, task_id)
        if wanted.args is None or other is None or any(map(other, found)):
            yield folded(task_id, found or (entry,))


# ---------------------------------------------------------------------------------------------- slowest


class Slowest:
    """The `limit` largest times, or the largest of each task name. Memory grows with the limit, or with the number of
    names."""

    def __init__(self, limit: int, *, by_name: bool) -> None:
        self._limit, self._by_name = limit, by_name
        self._heap: list[tuple[float, int, str, str]] = []  # seconds, place, id, name
        self._names: dict[str, tuple[float, int, str, str]] = {}

    def add(self, seconds: float, at: int, task_id: str, name: str | None) -> None:
        """Adds the time of one run."""
        one = (seconds, at, task_id, name or "")
        if self._by_name:
            self._names[one[3]] = max(one, self._names.get(one[3], one))
        elif not self._limit or len(self._heap) < self._limit:
            heapq.heappush(self._heap, one)
        else:
            heapq.heappushpop(self._heap, one)

    def found(self) -> list[tuple[float, str]]:
        """The times and their tasks' ids, largest first."""
        ordered = sorted(self._names.values() if self._by_name else self._heap, reverse=True)
        return [(seconds, task_id) for seconds, _, task_id, _ in ordered[: self._limit or None]]


def slowest(
    store: Source, newest_first: Iterable[Event], sort: Sort, limit: int, *, by_name: bool = False
) -> list[tuple[float, Life]]:
    """The runs that took or waited longest, with the seconds. `newest_first` are events of the kinds
    SLOW_KINDS[sort]."""
    largest = Slowest(limit, by_name=by_name)
    if sort == "run":
        for event in newest_first:
            seconds = number_of(event.details, "runtime")
            if seconds is not None and event.task_id:
                largest.add(seconds, event.physical_offset, event.task_id, event.name)
    else:
        _waits(store, newest_first, largest)
    lives = ((seconds, life_of(store, task_id)) for seconds, task_id in largest.found())
    return [(seconds, life) for seconds, life in lives if life is not None]


def _waits(store: Source, newest_first: Iterable[Event], largest: Slowest) -> None:
    """Times between SENT and STARTED. A STARTED waits in memory for its SENT. If it has to make room, its SENT is
    looked up by the id."""
    began = Remembered()

    def look_up(task_id: str) -> None:
        life = life_of(store, task_id)
        if life is not None and life.wait_ms is not None:
            largest.add(life.wait_ms / 1000, life.stage_at, task_id, life.name)

    for event in newest_first:
        task_id = event.task_id
        if not task_id:
            continue
        if event.event == events.STARTED:
            forgotten = began.add(task_id, event.time_ms)
            if forgotten is not None:
                look_up(forgotten[0])
            continue
        started_ms = began.pop(task_id)
        if started_ms is not None:
            begin_ms = max(event.time_ms, moment_ms(text_of(event.details, "eta")) or 0)
            largest.add(max(0, started_ms - begin_ms) / 1000, event.physical_offset, task_id, event.name)
    for task_id in began:  # sent before the first event that was asked for
        look_up(task_id)
