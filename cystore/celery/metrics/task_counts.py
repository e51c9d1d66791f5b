"""Counts of tasks, folded from their events in the order of the log.

Memory is bounded: `OPEN_MOST` tasks that have not ended, and the `ENDED_MOST` that ended last. Of too many open tasks
the oldest is left out: its events are still counted, but its queue and its wait are not known any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.eta.waiting import WaitingTask
from cystore.celery.lifecycle.task_lives import ENDS, LATE_SENT_MS, moment_ms, number_of, text_of
from cystore.celery.metrics.places import OTHER, Place, Places

OPEN_MOST, ENDED_MOST = 100_000, 10_000
REQUEUED = "REQUEUED"  # the state of a run whose message went back to the broker
MAY_REQUEUE = (events.REJECTED, events.CHILD_LOST)
WAITING, RUNNING, ENDED = range(3)


class Task:
    """The known facts of one task. Times are ms since 1970; 0: not known. A try is the number of tries before it."""

    __slots__ = (
        "begun_try", "due_ms", "newest_at", "newest_ms", "pid", "place", "sent_ms", "sent_try", "stage", "started_ms",
    )  # fmt: skip

    def __init__(self, place: Place, time_ms: int, physical_offset: int) -> None:
        self.place, self.stage = place, WAITING
        self.newest_ms, self.newest_at = time_ms, physical_offset
        self.sent_try = self.begun_try = -1  # the newest try that was sent, and that has begun
        self.sent_ms = self.due_ms = self.started_ms = self.pid = 0

    @property
    def since_ms(self) -> int:
        """From when on it waits."""
        return max(self.sent_ms or self.newest_ms, self.due_ms)


class Present(NamedTuple):
    """The tasks of a place that have not ended."""

    in_flight: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    unfinished: int = 0
    lost: int = 0
    eta: int = 0


class TaskCounts:
    """The counts of one log."""

    def __init__(self, names_most: int) -> None:
        self.places = Places(names_most)
        self.left_out = 0  # open tasks that had to make room
        self.events_lost = 0
        self.taken = 0
        self._open: OrderedDict[str, Task] = OrderedDict()
        self._ended: OrderedDict[str, Task] = OrderedDict()

    def forget_tasks(self) -> None:
        """Forgets the single tasks: another log follows. Counts stay."""
        self._open.clear()
        self._ended.clear()

    def keeps(self, task: WaitingTask, time_ms: int) -> None:
        """Takes in a task that waits in the store for its ETA: its events may be older than the reader looks back."""
        known = Task(self.places.of(task.name, task.message.routing_key), time_ms, task.physical_offset)
        known.due_ms = task.due_ms
        self._opened(task.task_id, known)

    def take(self, event: Event, details: Mapping[str, Any], *, counts: bool) -> None:
        """Takes in the next event. Without `counts` only the tasks are followed: it is older than this reader."""
        self.taken += 1
        kind = event.event or ""
        if kind in MAY_REQUEUE and details.get("requeue"):
            kind = REQUEUED
        task = self._open.get(event.task_id or "") or self._ended.get(event.task_id or "")
        queue = text_of(details, "queue")
        if task is not None and queue is None:
            place = task.place
        else:
            place = self.places.of(event.name or "", queue or "")
        if counts:
            self._count(kind, place, details)
        if event.task_id:
            self._follow(event.task_id, task, kind, place, event, details, counts)

    def _count(self, kind: str, place: Place, details: Mapping[str, Any]) -> None:
        place.events[kind if kind in events.KINDS or kind == REQUEUED else OTHER] += 1
        if "lost" in details:
            self.events_lost += int(number_of(details, "lost") or 0)
        runtime = number_of(details, "runtime")
        if runtime is not None and kind in (*ENDS, REQUEUED):
            place.runs.add(runtime)

    def _follow(
        self, task_id: str, task: Task | None, kind: str, place: Place, event: Event, details: Mapping[str, Any],
        counts: bool,
    ) -> None:  # fmt: skip
        retries = int(number_of(details, "retries") or 0)
        if kind == events.SENT:
            self._sent(task_id, task, place, event, details, retries, counts)
            return
        if kind == events.INTERNAL_ERROR:
            return  # an end follows
        if (
            kind == events.RETRIED
            and task is not None
            and (task.stage != RUNNING or retries < task.begun_try)
        ):
            return  # its next try is further already: another process writes its events
        if task is None or (task.stage == ENDED and kind not in ENDS):
            task = Task(place, event.time_ms, event.physical_offset)
        task.place, task.newest_ms, task.newest_at = place, event.time_ms, event.physical_offset
        if kind in ENDS:
            task.stage, task.begun_try = ENDED, max(task.begun_try, retries)
            self._open.pop(task_id, None)
            _keep(self._ended, task_id, task, ENDED_MOST)
            return
        if kind == events.STARTED:
            self._started(task, event, details, retries, counts)
        elif kind == events.RETRIED and not task.due_ms:
            wait_s = number_of(details, "countdown") or 0
            task.due_ms = moment_ms(text_of(details, "eta")) or event.time_ms + int(min(wait_s, 1e12) * 1000)
        elif kind == events.SCHEDULED:
            task.due_ms = moment_ms(text_of(details, "eta")) or task.due_ms
        elif kind == events.FIRED:
            task.due_ms = min(task.due_ms, event.time_ms)  # perhaps before its ETA
        if kind in (events.RETRIED, events.REDELIVERED, REQUEUED):
            task.stage = WAITING
        self._opened(task_id, task)

    def _started(
        self, task: Task, event: Event, details: Mapping[str, Any], retries: int, counts: bool
    ) -> None:
        task.stage, task.started_ms, task.begun_try = RUNNING, event.time_ms, retries
        task.pid = int(number_of(details, "pid") or 0)
        if task.sent_ms and counts:
            task.place.waits.add(max(0, event.time_ms - max(task.sent_ms, task.due_ms)) / 1000)
        task.sent_ms = task.due_ms = 0  # a second run of the same message did not wait since then

    def _sent(
        self, task_id: str, task: Task | None, place: Place, event: Event, details: Mapping[str, Any], retries: int,
        counts: bool,
    ) -> None:  # fmt: skip
        due_ms = max(0, moment_ms(text_of(details, "eta")) or 0)
        if task is not None and task.sent_try < retries <= task.begun_try and (
            task.stage != ENDED or event.time_ms - task.newest_ms <= LATE_SENT_MS
        ):  # fmt: skip
            # A publisher logs its message after it has sent it.
            task.sent_try, task.place = retries, place
            if task.started_ms and counts:
                place.waits.add(max(0, task.started_ms - max(event.time_ms, due_ms)) / 1000)
            return
        if task is None or task.stage == ENDED:
            if details.get("home"):
                return  # the store that has its result has its other events, too
            task = Task(place, event.time_ms, event.physical_offset)
        # A retry sends its message before it ends the run.
        task.sent_try, task.sent_ms, task.due_ms = retries, event.time_ms, due_ms
        task.newest_ms, task.newest_at = event.time_ms, event.physical_offset
        self._opened(task_id, task)

    def _opened(self, task_id: str, task: Task) -> None:
        self._ended.pop(task_id, None)
        self.left_out += _keep(self._open, task_id, task, OPEN_MOST)

    def present(
        self, now_ms: int, old_ms: int, first_offset: int, is_gone: Callable[[Task], bool]
    ) -> Iterator[tuple[Place, Present]]:
        """The open tasks of each place. `old_ms`: the age from which on a task is unfinished. A task whose newest
        event the log does not have any more is forgotten, unless it waits for its ETA."""
        found: dict[Place, list[float]] = {place: [0, 0, 0.0, 0, 0, 0] for place in self.places}
        for task_id, task in list(self._open.items()):
            if task.newest_at < first_offset and task.due_ms <= now_ms:
                del self._open[task_id]
                continue
            numbers = found[task.place]
            if task.stage == RUNNING:
                numbers[0] += 1
                numbers[4] += is_gone(task)
            elif task.due_ms <= now_ms:
                numbers[1] += 1
                numbers[2] = max(numbers[2], (now_ms - task.since_ms) / 1000)
            else:
                numbers[5] += 1
            numbers[3] += now_ms - max(task.newest_ms, task.due_ms) >= old_ms
        for place, (in_flight, waiting, oldest_s, unfinished, lost, eta) in found.items():
            yield place, Present(int(in_flight), int(waiting), oldest_s, int(unfinished), int(lost), int(eta))


def _keep(tasks: OrderedDict[str, Task], task_id: str, task: Task, most: int) -> bool:
    """Keeps a task as the newest one; True if the oldest one had to make room."""
    tasks[task_id] = task
    tasks.move_to_end(task_id)
    if len(tasks) <= most:
        return False
    tasks.popitem(last=False)
    return True
