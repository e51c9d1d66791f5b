"""Follows one store's log, and gives the metrics of its tasks.

The log is read once: each look reads what is new since the last one, for `LOOK_S` at most, and the next look continues.

Counters begin at 0 with the reader, as those of every program that Prometheus scrapes: `rate` and `increase` know that.
Counted from the oldest message of the log they would go back when the log is cleaned, and Prometheus would take what is
left for new. `from_oldest` counts so all the same, for one look at what the log has. A reader that begins looks back
over the end of the log, without counting: so it knows the tasks that have not ended, and shows each name with 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cystore import MessageStore, clock
from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.eta import waiting
from cystore.celery.lifecycle.task_lives import number_of, text_of
from cystore.celery.metrics.event_reader import EventReader, first_offset
from cystore.celery.metrics.places import Histogram, Place
from cystore.celery.metrics.task_counts import OPEN_MOST, Present, Task, TaskCounts
from cystore.celery.metrics.worker_signs import WorkerSigns
from cystore.metrics.text import NAMES_MOST, UNFINISHED_S, Kind, Metric, Samples

LOOK_S = 2.0


class LogFollower:
    """The tasks of one store. `look` may be called in any thread, by one at a time."""

    def __init__(
        self,
        *,
        names_most: int = NAMES_MOST,
        unfinished_s: float = UNFINISHED_S,
        from_oldest: bool = False,
        look_s: float = LOOK_S,
        is_worker: bool = False,
    ) -> None:
        self.counts, self.workers = TaskCounts(names_most), WorkerSigns(is_worker=is_worker)
        self._names_most, self._unfinished_s = names_most, unfinished_s
        self._look_s = look_s
        self._reader = EventReader(from_oldest=from_oldest)

    def look(self, store: MessageStore) -> list[Metric]:
        """Reads on, and gives the metrics; none of a store that no app ever used. Raises StoreError."""
        self.workers.look(store)
        end = store.wrote_position
        if self._reader.begin(store, end):
            self.counts.forget_tasks()
            self.workers.clear()
            self._begin_with_waiting(store)
        for event in self._reader.read(store, end, self._look_s):
            self._take(event)
        self.workers.settle()
        if not self.counts.taken and events.EVENTS not in store.topics():
            return []
        return [*self._counters(end), *self._gauges(store)]

    def _begin_with_waiting(self, store: MessageStore) -> None:
        """Learns which tasks wait for their ETA in the store, those that are due next if there are very many."""
        until_s, now = clock.monotonic_s() + self._look_s, clock.now_ms()
        for task in islice(waiting.waiting(store), OPEN_MOST):
            self.counts.keeps(task, now)
            if clock.monotonic_s() >= until_s:
                return

    def _take(self, event: Event) -> None:
        details = event.details
        self.counts.take(event, details, counts=event.physical_offset >= self._reader.begins_at)
        worker = text_of(details, "worker")
        if worker and not details.get("eager"):
            self.workers.saw(worker, int(number_of(details, "pid") or 0), event.time_ms)

    # ------------------------------------------------------------------------------------------- metrics

    def _counters(self, end: int) -> Iterator[Metric]:
        places = list(self.counts.places)
        yield Metric(
            "cystore_tasks_total", "counter", "Events of tasks, by the event.",
            [({**place.labels, "state": state}, count)
             for place in places for state, count in {**dict.fromkeys(SHOWN, 0), **place.events}.items()],
        )  # fmt: skip
        yield Metric(
            "cystore_task_retries_total", "counter", "Runs that asked to run again.",
            [(place.labels, place.events[events.RETRIED]) for place in places],
        )  # fmt: skip
        yield _histogram(
            "cystore_task_run_seconds", "Run time of a task's code, of runs that ended.",
            [(place, place.runs) for place in places],
        )  # fmt: skip
        yield _histogram(
            "cystore_task_wait_seconds", "Time from the sending of a task, or its due time, until its code begins.",
            [(place, place.waits) for place in places],
        )  # fmt: skip
        numbers: tuple[tuple[str, Kind, str, float], ...] = (
            ("cystore_task_events_lost_total", "counter", "Events of tasks that could not be recorded.",
             self.counts.events_lost),
            ("cystore_tasks_left_out_total", "counter", "Unfinished tasks that the reader had no room for.",
             self.counts.left_out),
            ("cystore_task_log_skipped_bytes_total", "counter", "Log that was cleaned before it was read for this.",
             self._reader.skipped),
            ("cystore_task_log_behind_bytes", "gauge", "Log that is not read for this yet.",
             max(0, end - self._reader.at)),
            ("cystore_task_log_damaged", "gauge", "1 while damage in the log stops the reading.",
             float(self._reader.is_damaged)),
            ("cystore_tasks_unfinished_after_seconds", "gauge", "The age from which on a task counts as unfinished.",
             self._unfinished_s),
        )  # fmt: skip
        for name, kind, text, value in numbers:
            yield Metric(name, kind, text, [({}, value)])

    def _gauges(self, store: MessageStore) -> Iterator[Metric]:
        """Metrics that need the whole end of the log."""
        now = clock.now_ms()
        found: list[tuple[Place, Present]] = []
        alive: dict[str, bool] = {}
        if self._reader.caught_up:
            alive = self.workers.alive(now)
            found = list(
                self.counts.present(now, int(self._unfinished_s * 1000), first_offset(store), self._is_gone)
            )
        for name, text, field in (
            ("cystore_tasks_in_flight", "Tasks that run.", "in_flight"),
            ("cystore_tasks_waiting", "Tasks that are due and have not begun.", "waiting"),
            ("cystore_tasks_waiting_oldest_seconds", "How long the oldest of these waits.", "oldest_s"),
            (
                "cystore_tasks_unfinished",
                "Tasks without an end, and without an event for long.",
                "unfinished",
            ),
            ("cystore_tasks_eta_waiting", "Tasks that are sent and not due yet.", "eta"),
            ("cystore_tasks_lost", "Tasks whose process ended while it ran them.", "lost"),
        ):
            yield Metric(name, "gauge", text, [(place.labels, getattr(one, field)) for place, one in found])
        workers: Samples = [({}, self.workers.count(alive))] if self._reader.caught_up else []
        yield Metric("cystore_workers_alive", "gauge", "Workers that live.", workers)
        yield Metric(
            "cystore_worker_alive", "gauge", "1 for a worker that lives, 0 for one that is gone.",
            [({"worker": name}, float(lives)) for name, lives in self._shown(alive)],
        )  # fmt: skip
        yield Metric(
            "cystore_worker_last_event_timestamp_seconds", "gauge", "When a worker wrote its last event.",
            [({"worker": name}, self.workers.last_ms(name) / 1000) for name, _ in self._shown(alive)],
        )  # fmt: skip

    def _shown(self, alive: dict[str, bool]) -> list[tuple[str, bool]]:
        """The workers with labels of their own: those that wrote last."""
        newest = sorted(alive, key=self.workers.last_ms, reverse=True)[: self._names_most]
        return [(name, alive[name]) for name in sorted(newest)]

    def _is_gone(self, task: Task) -> bool:
        return self.workers.is_gone(task.pid)


SHOWN = (events.SENT, events.STARTED, events.SUCCEEDED, *events.FAILURES, events.RETRIED, events.REVOKED)


def _histogram(name: str, text: str, found: list[tuple[Place, Histogram]]) -> Metric:
    samples = [sample for place, times in found for sample in times.samples(place.labels)]
    return Metric(name, "histogram", text, samples, [(place.labels, times.sum_s) for place, times in found])
