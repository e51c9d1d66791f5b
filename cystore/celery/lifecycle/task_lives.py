"""One task's life, folded from its events and results, for the commands.

A life never takes more memory than its newest `ENTRIES_KEPT` entries. Each value of a record is checked before it is
used: a field of another type counts as unknown.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from celery import states

from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.history import Transition

ENDS = (
    events.SUCCEEDED, events.FAILED, events.TIMED_OUT, events.CHILD_LOST, events.REJECTED, events.REVOKED,
    events.UNKNOWN,
    events.IGNORED,
)  # fmt: skip
BEGINS = (events.SENT, events.RECEIVED, events.REDELIVERED, events.STARTED, events.RETRIED)
ENTRIES_KEPT = 4096  # of one task; a task that is retried for ever has more
IDS_KEPT = 100_000  # ids that a pass over the log remembers
# A publisher logs its message after sending it, so a quick task may have ended by then. A SENT this close to an end
# belongs to it.
LATE_SENT_MS = 60_000
_TAKEN = (events.RECEIVED, events.REDELIVERED, events.STARTED)
_MAY_REQUEUE = (events.REJECTED, events.CHILD_LOST)


def text_of(details: Mapping[str, Any], field: str) -> str | None:
    """A text field; None if it is missing or has another type."""
    value = details.get(field)
    return value if isinstance(value, str) else None


def number_of(details: Mapping[str, Any], field: str) -> float | None:
    """A field with a number from 0 on; None if it is missing or has another type."""
    value = details.get(field)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return value if value >= 0 else None


def moment_ms(text: str | None) -> int | None:
    """An ISO 8601 time in ms since 1970; None for another text."""
    try:
        moment = datetime.fromisoformat(text or "")
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


@dataclass(slots=True)
class Life:
    """The known facts of a task. Times are ms since 1970. `sent_ms` and the following times belong to the last try;
    `outcome` and `ended_ms` are None until it has ended. `stage` is its newest event other than an end. `result_state`
    and the following fields belong to the result that the backend shows, by the rule of `records.fold`: a SUCCESS
    stays, whatever a duplicate does later."""

    task_id: str
    name: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    home: str | None = None  # the store that keeps its result, if that is another one
    args: str | None = None
    kwargs: str | None = None
    queue: str | None = None
    worker: str | None = None
    pid: int | None = None
    first_ms: int | None = None
    sent_ms: int | None = None
    due_ms: int | None = None  # the earliest time at which it may begin
    received_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    runtime_s: float | None = None
    retries: int = 0
    stage: str | None = None
    stage_ms: int | None = None
    stage_at: int = -1  # physical offset of its newest event other than an end
    outcome: str | None = None
    exception: str | None = None
    result_state: str | None = None
    result_bytes: int | None = None
    result_type: str | None = None
    rerun_of: str | None = None

    @property
    def has_succeeded(self) -> bool:
        """Whether its work was done once: the last try says so, or the result that the backend shows."""
        return self.outcome == events.SUCCEEDED or self.result_state == states.SUCCESS

    @property
    def has_ended(self) -> bool:
        """Whether no later event can change its result."""
        return self.outcome is not None or self.has_succeeded

    @property
    def wait_ms(self) -> int | None:
        """The wait of the last try, from when it was sent, or due, until its code began."""
        begin = max((one for one in (self.sent_ms, self.due_ms) if one is not None), default=None)
        if begin is None or self.started_ms is None or self.sent_ms is None:
            return None
        return max(0, self.started_ms - begin)

    def take(self, entry: Event | Transition) -> None:
        """Takes in the next entry; they come oldest first."""
        self.name = entry.name or self.name
        self.first_ms = entry.time_ms if self.first_ms is None else self.first_ms
        if isinstance(entry, Event):
            self._event(entry)
        elif entry.forgotten:
            self.result_state = self.result_bytes = self.result_type = None
        elif not entry.late:
            if self.result_state != states.SUCCESS:
                self.result_state, self.result_bytes = entry.state, entry.size_bytes
                self.result_type = entry.content_type
            if entry.state in states.READY_STATES and self.outcome is None:
                self._end(entry.state, entry.time_ms)

    def _event(self, event: Event) -> None:
        details, kind, time_ms = event.details, event.event, event.time_ms
        if event.root_id != event.task_id or self.root_id is None:
            self.root_id = event.root_id
        self.group_id = event.group_id or self.group_id
        for field in ("parent_id", "args", "kwargs", "queue", "worker", "home", "rerun_of"):
            setattr(self, field, text_of(details, field) or getattr(self, field))
        tries = int(number_of(details, "retries") or 0)
        is_earlier = (
            kind == events.RETRIED and tries < self.retries
        )  # logged after the next message, which may have run by then
        self.retries = tries if kind == events.SENT else max(tries, self.retries)
        if kind in ENDS and not details.get("requeue"):
            self._end(kind, time_ms)
            runtime = number_of(details, "runtime")
            self.runtime_s = self.runtime_s if runtime is None else runtime
            self.exception = text_of(details, "exception") if kind != events.SUCCEEDED else None
        elif is_earlier:
            self.stage_at = event.physical_offset
        elif kind in BEGINS or kind in ENDS:
            self._begin(event, details)
        pid = number_of(details, "pid")
        self.pid = self.pid if pid is None else int(pid)

    def _begin(self, event: Event, details: Mapping[str, Any]) -> None:
        kind, time_ms = event.event, event.time_ms
        if kind == events.SENT:
            self.sent_ms, self.due_ms = time_ms, moment_ms(text_of(details, "eta"))
            if self.ended_ms is not None and time_ms - self.ended_ms <= LATE_SENT_MS:
                return
            if self.stage in _TAKEN and time_ms - (self.stage_ms or 0) <= LATE_SENT_MS:
                self.stage_at = event.physical_offset
                return
        elif kind == events.RETRIED:
            countdown = number_of(details, "countdown")
            self.due_ms = moment_ms(text_of(details, "eta")) or (
                None if countdown is None else int(min(time_ms + countdown * 1000, 1 << 62))
            )
            self.exception = text_of(details, "exception")
        elif kind == events.STARTED:
            self.started_ms, self.runtime_s = time_ms, None
        elif kind in (events.RECEIVED, events.REDELIVERED):
            self.received_ms = time_ms
        self.stage, self.stage_ms, self.stage_at = kind, time_ms, event.physical_offset
        self.outcome = self.ended_ms = None

    def _end(self, outcome: str | None, time_ms: int) -> None:
        self.outcome, self.ended_ms = outcome, time_ms


def entries_of(store: Source, task_id: str) -> list[Event | Transition]:
    """A task's entries, oldest first; of very many the newest."""
    return list(islice(history.entries(store, task_id=task_id), ENTRIES_KEPT))[::-1]


def life_of(store: Source, task_id: str) -> Life | None:
    """A task's life; None if the log does not know it."""
    found = entries_of(store, task_id)
    return folded(task_id, found) if found else None


def folded(task_id: str, entries: Iterable[Event | Transition]) -> Life:
    """A life from the entries of one task, oldest first."""
    life = Life(task_id)
    for entry in entries:
        life.take(entry)
    return life


class Remembered:
    """The ids that were met last, at most `IDS_KEPT`, with a value each."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._ids

    def add(self, task_id: str, value: int = 0) -> tuple[str, int] | None:
        """Remembers an id; returns the oldest one with its value if that had to make room."""
        self._ids[task_id] = value
        self._ids.move_to_end(task_id)
        return self._ids.popitem(last=False) if len(self._ids) > IDS_KEPT else None

    def pop(self, task_id: str) -> int | None:
        """Forgets an id; returns its value, None if it is unknown."""
        return self._ids.pop(task_id, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)


# ---------------------------------------------------------------------------------------------- unfinished


def unfinished(store: Source, newest_first: Iterable[Event], before_ms: int) -> Iterator[Life]:
    """Unended tasks whose newest event, and due time, is not after `before_ms`: each once, newest first. A task with a
    SUCCESS has ended, whatever a duplicate of its message does later.

    `newest_first` are events of the kinds BEGINS and ENDS. The passing events settle most tasks; an id that is not
    remembered is looked up.
    """
    settled = Remembered()
    for event in newest_first:
        task_id = event.task_id
        if task_id is None or task_id in settled:
            continue
        settled.add(task_id)
        if _is_end(event) or event.time_ms > before_ms:
            continue
        life = life_of(store, task_id)
        if life is None or life.has_ended or life.stage_at != event.physical_offset:
            continue
        if max(life.due_ms or 0, event.time_ms) <= before_ms:
            yield life


def _is_end(event: Event) -> bool:
    """Whether the event is the task's last one. A message that went back to the broker comes again."""
    return event.event in ENDS and not (event.event in _MAY_REQUEUE and event.details.get("requeue"))
