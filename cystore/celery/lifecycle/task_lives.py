"""One task's life, folded from its events and results, for the commands.

A life never takes more memory than its newest `ENTRIES_KEPT` entries. Each value of a record is checked before it is
used: a field of another type counts as unknown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Generic, TypeVar

from celery import states

from cystore import Message
from cystore.celery import history
from cystore.celery.base import events, reading, records
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.history import Transition

ENDS = (
    events.SUCCEEDED, events.FAILED, events.TIMED_OUT, events.CHILD_LOST, events.REJECTED, events.REVOKED,
    events.UNKNOWN,
    events.IGNORED, events.SKIPPED, events.CANCELLED,
)  # fmt: skip
BEGINS = (
    events.SENT, events.SCHEDULED, events.FIRED, events.RECEIVED, events.REDELIVERED, events.STARTED, events.RETRIED,
)  # fmt: skip
ENTRIES_KEPT = 4096  # of one task; a task that is retried for ever has more
IDS_KEPT = 100_000  # ids that a pass over the log remembers
# A publisher logs its message after sending it, so a quick task may have ended by then. A SENT this close to an end
# belongs to it.
LATE_SENT_MS = 60_000
NUMBER_MOST = (1 << 53) - 1  # a float holds it exactly, and every consumer of our output takes it
_MAY_REQUEUE = (events.REJECTED, events.CHILD_LOST)


def text_of(details: Mapping[str, Any], field: str) -> str | None:
    """A text field; None if it is missing or has another type."""
    value = details.get(field)
    return value if isinstance(value, str) else None


def number_of(details: Mapping[str, Any], field: str) -> float | None:
    """A field with a number from 0 to NUMBER_MOST; None if it is missing or something else."""
    value = details.get(field)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if 0 <= value <= NUMBER_MOST else None


def moment_ms(text: str | None) -> int | None:
    """An ISO 8601 time in ms since 1970; None for another text."""
    try:
        moment = datetime.fromisoformat(text or "")
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


Place = tuple[str, int]  # a store's path, empty for the only one, and a physical offset
NOT_SHOWN = (
    "stage_at",
    "again_ms",
    "is_over",
    "begun_at",
    "ended_at",
)  # fields of `Life` that only runs need


@dataclass(slots=True)
class Life:
    """The known facts of one run of a task, or of a task: then those of its last run. A run is one delivery of one try.
    Times are ms since 1970. `outcome` and `ended_ms` are None until it has ended. `stage` is its newest event other
    than an end. `result_state` and the following fields belong to the result: of a run to its own, of a task to the one
    that the backend shows, by the rule of `records.fold`."""

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
    cause: str | None = None  # the task whose failure kept it from running
    # These four are not shown: NOT_SHOWN.
    again_ms: int | None = None  # when its message came again after an earlier run of it had begun
    is_over: bool = False  # an event ended it, or sent its message back
    begun_at: Place | None = None  # its STARTED
    ended_at: Place | None = None  # its end

    @property
    def has_succeeded(self) -> bool:
        """Whether its work was done once: the last run says so, or the result that the backend shows."""
        return self.outcome == events.SUCCEEDED or self.result_state == states.SUCCESS

    @property
    def has_ended(self) -> bool:
        """Whether no later event can change its result."""
        return self.outcome is not None or self.has_succeeded

    @property
    def since_ms(self) -> int | None:
        """The time from which the run waited: when it was sent or due, or when its message came again."""
        if self.again_ms is not None or self.sent_ms is None:
            return self.again_ms
        return max(self.sent_ms, self.due_ms or 0)

    @property
    def wait_ms(self) -> int | None:
        """The wait of the run, until its code began."""
        since_ms = self.since_ms
        return None if since_ms is None or self.started_ms is None else max(0, self.started_ms - since_ms)

    def take(self, event: Event) -> None:
        """Takes in the next event of the run; they come oldest first."""
        details, kind, time_ms = event.details, event.event, event.time_ms
        self.name = event.name or self.name
        self.first_ms = time_ms if self.first_ms is None else self.first_ms
        if event.root_id != event.task_id or self.root_id is None:
            self.root_id = event.root_id
        self.group_id = event.group_id or self.group_id
        for field in ("parent_id", "args", "kwargs", "queue", "worker", "home", "rerun_of", "cause"):
            setattr(self, field, text_of(details, field) or getattr(self, field))
        pid = number_of(details, "pid")
        self.pid = self.pid if pid is None else int(pid)
        runtime = number_of(details, "runtime")
        self.runtime_s = self.runtime_s if runtime is None else runtime
        if kind in ENDS and not details.get("requeue"):
            self.outcome, self.ended_ms, self.ended_at = kind, time_ms, place_of(event)
            self.is_over = True
            self.exception = text_of(details, "exception") if kind != events.SUCCEEDED else None
        elif kind in BEGINS or kind in ENDS:
            self._begin(event, details)

    def _begin(self, event: Event, details: Mapping[str, Any]) -> None:
        kind, time_ms = event.event, event.time_ms
        if kind == events.SENT:
            self.sent_ms, self.due_ms = time_ms, moment_ms(text_of(details, "eta"))
            if self.outcome is None:
                self.stage_at = event.physical_offset
            if self.stage is not None:  # told late
                return
        elif kind == events.RETRIED:
            countdown = number_of(details, "countdown")
            self.due_ms = moment_ms(text_of(details, "eta")) or (
                None if countdown is None else int(min(time_ms + countdown * 1000, 1 << 62))
            )
            self.exception, self.is_over = text_of(details, "exception"), True
        elif kind == events.STARTED:
            self.started_ms, self.begun_at = time_ms, place_of(event)
        elif kind in (events.RECEIVED, events.REDELIVERED):
            self.received_ms = time_ms
        elif kind == events.SCHEDULED:
            # The newest one: it may have been moved.
            self.due_ms = moment_ms(text_of(details, "eta")) or self.due_ms
        elif kind == events.FIRED:
            self.due_ms = None if self.due_ms is None else min(self.due_ms, time_ms)  # perhaps before its ETA
        else:
            self.is_over = True  # its message went back
        self.stage, self.stage_ms, self.stage_at = kind, time_ms, event.physical_offset

    def again(self, time_ms: int) -> Life:
        """The next run of the same message, which came again."""
        again_ms = None
        if self.started_ms is not None:  # its code had begun: it did not wait for that all the time
            again_ms = self.stage_ms if self.is_over and self.outcome is None else time_ms
        return replace(
            self, first_ms=None, received_ms=None, started_ms=None, ended_ms=None, runtime_s=None, stage=None,
            stage_ms=None, stage_at=-1, outcome=None, exception=None, result_state=None, result_bytes=None,
            result_type=None, again_ms=again_ms, is_over=False, begun_at=None, ended_at=None, worker=None, pid=None,
            cause=None,
        )  # fmt: skip


def place_of(entry: Event | Transition) -> Place:
    """The place of an entry, among those of several stores."""
    return entry.store, entry.physical_offset


class Runs:
    """The runs of one task, in the order in which they began, from its entries, oldest first."""

    def __init__(self, task_id: str, is_valid: Callable[[Message], bool]) -> None:
        self.task_id = task_id
        self.found: list[Life] = []
        self._is_valid = is_valid
        self._newest_started: Life | None = None
        self._results: list[Transition] = []  # since the last forget
        self._forgotten = 0  # the runs before it

    def take(self, entry: Event | Transition) -> None:
        """Takes in the next entry."""
        if isinstance(entry, Event):
            run = self._run_of(entry)
            run.take(entry)
            if entry.event == events.STARTED:
                self._newest_started = run
            return
        if entry.forgotten:
            self._results.clear()
            self._forgotten = len(self.found)
            for run in self.found:
                run.result_state = run.result_bytes = run.result_type = None
            return
        self._results.append(entry)
        if not entry.late:
            self._result(entry)

    def _result(self, entry: Transition) -> None:
        run = next((one for one in reversed(self.found) if one.started_ms and not one.is_over), None)
        run = run or (self.found[-1] if self.found else self._new(0))
        run.name = entry.name or run.name
        run.first_ms = entry.time_ms if run.first_ms is None else run.first_ms
        run.result_state, run.result_bytes = entry.state, entry.size_bytes
        run.result_type = entry.content_type
        if entry.state in states.READY_STATES and run.outcome is None:
            run.outcome, run.ended_ms = entry.state, entry.time_ms
        if entry.state in states.PROPAGATE_STATES and run.stage is None:
            _add_failure(run, entry)

    def _new(self, retries: int) -> Life:
        self.found.append(Life(self.task_id, retries=retries))
        return self.found[-1]

    def _again(self, run: Life, time_ms: int) -> Life:
        self.found.append(run.again(time_ms))
        return self.found[-1]

    def _run_of(self, event: Event) -> Life:
        """The run that an event belongs to; a new one where it begins a run."""
        details, kind = event.details, event.event
        started = self._newest_started
        number = events.try_of(
            kind, int(number_of(details, "retries") or 0), None if started is None else started.retries
        )
        known = [run for run in self.found if run.retries == number]
        if kind == events.SENT:
            late = known[-1] if known else None
            is_late = late is not None and late.sent_ms is None and late not in self.found[: self._forgotten]
            if (
                late is not None
                and is_late
                and event.time_ms - (late.ended_ms or late.stage_ms or 0) <= LATE_SENT_MS
            ):
                return late
            return self._new(number)
        if not known:
            return self._new(number)
        last, begins = known[-1], kind in (events.RECEIVED, events.REDELIVERED, events.STARTED)
        if begins:
            if not last.is_over and last.started_ms is None and last.outcome is None:
                return last
            if kind == events.RECEIVED and last.outcome is not None:
                return self._new(number)  # another message, whose SENT is not here
            return self._again(last, event.time_ms)
        open_runs = [run for run in known if not run.is_over]
        worker, pid = text_of(details, "worker"), details.get("pid")
        same = [run for run in open_runs if run.started_ms and (run.worker, run.pid) == (worker, pid)]
        begun = [run for run in open_runs if run.started_ms]
        for some in (same, begun, open_runs):
            if some:
                return some[-1]
        has_run = number_of(details, "runtime") is not None and kind in (*ENDS, events.RETRIED)
        return self._again(last, event.time_ms) if has_run else last

    def _last(self, *, has_lost_result: bool) -> Life:
        """The run that says how the task is. A SENT alone, close behind an end, may be a second one of the same
        message, unless the result was forgotten or has expired meanwhile."""
        last = self.found[-1]
        if last.stage != events.SENT or has_lost_result or len(self.found) - 1 <= self._forgotten:
            return last
        before = self.found[-2]
        is_close = before.ended_ms is not None and (last.sent_ms or 0) - before.ended_ms <= LATE_SENT_MS
        return before if is_close and before.retries == last.retries else last

    def task(self) -> Life:
        """The facts of the task: those of its last run, and its result."""
        if not self.found:
            return Life(self.task_id)
        result = records.fold((one._message for one in reversed(self._results)), self._is_valid)
        life = replace(self._last(has_lost_result=result is None and bool(self._results)))
        for run in reversed(self.found):
            for field in ("name", "root_id", "parent_id", "group_id", "home"):
                setattr(life, field, getattr(life, field) or getattr(run, field))
        life.first_ms = min((run.first_ms for run in self.found if run.first_ms is not None), default=None)
        life.stage_at = max(run.stage_at for run in self.found)
        life.result_state = None if result is None else result.tags
        life.result_bytes = None if result is None else len(result.body)
        life.result_type = None if result is None else result.properties.get("content_type", "")
        return life


def _add_failure(run: Life, entry: Transition) -> None:
    """Adds what the result alone says of a task without events: it did not run, or another store has its log."""
    meta = entry.meta
    run.exception = run.exception or entry.error
    run.group_id = run.group_id or text_of(meta, "group_id")
    run.parent_id = run.parent_id or text_of(meta, "parent_id")
    result = meta.get("result")
    message = result.get("exc_message") if isinstance(result, dict) else None
    if isinstance(message, list) and message:
        run.cause = run.cause or records.cause_in(message[0])


def any_record(record: Message) -> bool:
    """For logs that are read without an app: each record counts, however old it is."""
    return True


def kept(newest_first: Iterable[Event | Transition]) -> list[Event | Transition]:
    """A task's entries, oldest first; of very many the newest."""
    return list(islice(newest_first, ENTRIES_KEPT))[::-1]


def entries_of(store: Source, task_id: str) -> list[Event | Transition]:
    """The entries of a task in the log, as `kept`. Raises CorruptRecordError if none can be read, and a damaged record
    may have been an entry."""
    found = kept(history.entries(store, task_id=task_id))
    if not found:
        reading.check_key(store, (events.EVENTS, records.RESULTS), records.key_of(task_id))
    return found


def life_of(store: Source, task_id: str, is_valid: Callable[[Message], bool] = any_record) -> Life | None:
    """A task's life; None if the log does not know it. `is_valid` says whether a result has not expired."""
    found = entries_of(store, task_id)
    return folded(task_id, found, is_valid) if found else None


def folded(
    task_id: str, entries: Iterable[Event | Transition], is_valid: Callable[[Message], bool] = any_record
) -> Life:
    """A life from the entries of one task, oldest first."""
    return _runs(task_id, entries, is_valid).task()


def runs_of(task_id: str, entries: Iterable[Event | Transition]) -> list[Life]:
    """The runs of a task from its entries, oldest first. Each has its own times, name, arguments and end."""
    return _runs(task_id, entries, any_record).found


def _runs(task_id: str, entries: Iterable[Event | Transition], is_valid: Callable[[Message], bool]) -> Runs:
    runs = Runs(task_id, is_valid)
    for entry in entries:
        runs.take(entry)
    return runs


Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """The ids that were met last, at most `IDS_KEPT`, with a value each."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, Value] = OrderedDict()

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._ids

    def add(self, task_id: str, value: Value) -> tuple[str, Value] | None:
        """Remembers an id; returns the oldest one with its value if that had to make room."""
        self._ids[task_id] = value
        self._ids.move_to_end(task_id)
        return self._ids.popitem(last=False) if len(self._ids) > IDS_KEPT else None

    def pop(self, task_id: str) -> Value | None:
        """Forgets an id; returns its value, None if it is unknown."""
        return self._ids.pop(task_id, None)

    def values(self) -> Iterable[Value]:
        """The values of all ids."""
        return self._ids.values()


# ---------------------------------------------------------------------------------------------- unfinished


def unfinished(
    store: Source,
    newest_first: Iterable[Event],
    before_ms: int,
    is_valid: Callable[[Message], bool] = any_record,
) -> Iterator[Life]:
    """Unended tasks whose newest event, and due time, is not after `before_ms`: each once, newest first. A task with a
    SUCCESS that is neither expired nor forgotten has ended, whatever a duplicate of its message does later.

    `newest_first` are events of the kinds BEGINS and ENDS. The passing events settle most tasks; an id that is not
    remembered is looked up.
    """
    settled: Remembered[None] = Remembered()
    for event in newest_first:
        task_id = event.task_id
        if task_id is None or task_id in settled:
            continue
        settled.add(task_id, None)
        if _is_end(event) or event.time_ms > before_ms:
            continue
        life = life_of(store, task_id, is_valid)
        if life is None or life.has_ended or life.stage_at != event.physical_offset:
            continue
        if max(life.due_ms or 0, event.time_ms) <= before_ms:
            yield life


def _is_end(event: Event) -> bool:
    """Whether the event is the task's last one. A message that went back to the broker comes again."""
    return event.event in ENDS and not (event.event in _MAY_REQUEUE and event.details.get("requeue"))
