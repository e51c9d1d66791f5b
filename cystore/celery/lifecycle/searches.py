"""Searches that read the lifecycle log once, in bounded memory: tasks by the text of their arguments or errors, and
the slowest ones."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import dropwhile
from typing import Any, Literal, NamedTuple

from cystore import Contains, Message
from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Passed, Source
from cystore.celery.history import Transition
from cystore.celery.lifecycle import task_lives
from cystore.celery.lifecycle.task_lives import (
    ENDS,
    LATE_SENT_MS,
    Life,
    Place,
    Remembered,
    any_record,
    entries_of,
    folded,
    kept,
    moment_ms,
    number_of,
    place_of,
    runs_of,
    text_of,
)
from cystore.celery.versions import COMPRESSED

Sort = Literal["run", "wait"]
SLOW_KINDS: dict[Sort, tuple[str, ...]] = {"run": ENDS, "wait": (events.SENT, events.STARTED)}


# ---------------------------------------------------------------------------------------------- by text


_RUNS = re.compile(r"[0-9A-Za-z]+")
_PYTHONS = ("True", "False", "None", "inf", "nan")  # JSON has other words for them


def part_of(text: str) -> Contains | None:
    """A part of a text that each record with the text has, for a search without decoding; None if there is no such
    part. Letters and digits of ASCII stand in a record as they are, whatever is escaped around them, unless it is
    compressed."""
    runs = [run for run in _RUNS.findall(text) if not any(word in run or run in word for word in _PYTHONS)]
    return Contains((max(runs, key=len), COMPRESSED)) if runs else None


class Wanted:
    """Texts to be found: `args` in the arguments, `error` in the exception or its traceback. None stands for any."""

    def __init__(self, args: str | None, error: str | None, *, ignore_case: bool = False) -> None:
        self._fold: Callable[[str], str] = str.casefold if ignore_case else str
        self.args = None if args is None else self._fold(args)
        self.error = None if error is None else self._fold(error)

    def entries(
        self, store: Source, *, name: str | None = None, begin_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[Event | Transition | Passed]:
        """The entries among which `find` finds, newest first."""
        text = self.args if self.error is None else self.error
        contains = part_of(text) if text is not None and self._fold is str else None
        span: dict[str, Any] = {"name": name, "begin_ms": begin_ms, "end_ms": end_ms}
        return history.entries(store, **span) if contains is None else history.search(store, contains, **span)

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
    yield entry.error  # as commands show it
    yield traceback


def find(
    store: Source,
    newest_first: Iterable[Event | Transition | Passed],
    wanted: Wanted,
    is_valid: Callable[[Message], bool] = any_record,
) -> Iterator[Life]:
    """Tasks with the texts in their entries, newest match first. Both texts: each in some entry of the task."""
    met: Remembered[None] = Remembered()
    first, other = (wanted.has_args, None) if wanted.error is None else (wanted.has_error, wanted.has_args)
    for entry in newest_first:
        if isinstance(entry, Passed):
            continue
        task_id = entry.task_id
        if not task_id or task_id in met or not first(entry):
            continue
        met.add(task_id, None)
        found = entries_of(store, task_id)
        if wanted.args is None or other is None or any(map(other, found)):
            yield folded(task_id, found or (entry,), is_valid)


# ---------------------------------------------------------------------------------------------- slowest


class Run(NamedTuple):
    """One run in the log: its task, and the place and time of its STARTED or of its end."""

    task_id: str
    at: Place
    time_ms: int

    @classmethod
    def of(cls, event: Event) -> Run:
        """The run that an event with an id begins or ends."""
        return cls(event.task_id or "", place_of(event), event.time_ms)

    def life(self, store: Source) -> Life | None:
        """Its facts; None if the log has lost the event meanwhile. Of a task with very many entries those around the
        event are looked at, and at last those from the event back."""
        entries = partial(history.entries, store, task_id=self.task_id)
        looks: tuple[Callable[[], Iterator[Event | Transition]], ...] = (
            entries,
            partial(entries, end_ms=self.time_ms + LATE_SENT_MS),
            lambda: dropwhile(lambda entry: place_of(entry) != self.at, entries(end_ms=self.time_ms)),
        )
        cut: Life | None = None
        for look in looks:
            found = kept(look())
            # The first run may lack its beginning there, and have a part of the second one.
            whole = 0 if len(found) < task_lives.ENTRIES_KEPT else 2
            for number, one in enumerate(runs_of(self.task_id, found)):
                if self.at in (one.begun_at, one.ended_at):
                    if number >= whole:
                        return one
                    cut = one
        return cut


class Slowest:
    """The `limit` largest times, or the largest of each task name. Memory grows with the limit, or with the number of
    names."""

    def __init__(self, limit: int, *, by_name: bool) -> None:
        self._limit, self._by_name = limit, by_name
        self._heap: list[tuple[float, int, Any, str]] = []  # seconds, place, what took them, name
        self._names: dict[str, tuple[float, int, Any, str]] = {}

    def add(self, seconds: float, at: int, what: Any, name: str | None) -> None:
        """Adds the time of one run."""
        one = (seconds, at, what, name or "")
        if self._by_name:
            self._names[one[3]] = max(one, self._names.get(one[3], one))
        elif not self._limit or len(self._heap) < self._limit:
            heapq.heappush(self._heap, one)
        else:
            heapq.heappushpop(self._heap, one)

    def found(self) -> list[tuple[float, Any]]:
        """The times and what took them, largest first."""
        ordered = sorted(self._names.values() if self._by_name else self._heap, reverse=True)
        return [(seconds, what) for seconds, _, what, _ in ordered[: self._limit or None]]


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
                largest.add(seconds, event.physical_offset, Run.of(event), event.name)
    else:
        _waits(store, newest_first, largest)
    lives = ((seconds, run.life(store)) for seconds, run in largest.found())
    return [(seconds, life) for seconds, life in lives if life is not None]


def _waits(store: Source, newest_first: Iterable[Event], largest: Slowest) -> None:
    """Times between SENT and STARTED of a try. A STARTED waits in memory for its SENT. It is looked up by its id if it
    has to make room, and if an older STARTED of the same try shows that its message came again."""
    began: Remembered[Event] = Remembered()

    def look_up(event: Event | None) -> None:
        life = None if event is None else Run.of(event).life(store)
        if event is not None and life is not None and life.wait_ms is not None:
            largest.add(life.wait_ms / 1000, event.physical_offset, Run.of(event), life.name)

    for event in newest_first:
        if not event.task_id:
            continue
        key = f"{int(number_of(event.details, 'retries') or 0)} {event.task_id}"
        if event.event == events.STARTED:
            look_up(began.pop(key))
            forgotten = began.add(key, event)
            look_up(None if forgotten is None else forgotten[1])
            continue
        started = began.pop(key)
        if started is not None:
            begin_ms = max(event.time_ms, moment_ms(text_of(event.details, "eta")) or 0)
            seconds = max(0, started.time_ms - begin_ms) / 1000
            largest.add(seconds, started.physical_offset, Run.of(started), event.name)
    for event in began.values():  # sent before the first event that was asked for, or told late
        look_up(event)
