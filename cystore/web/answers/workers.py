"""The workers of a fleet: which live, when each was last seen, what it runs now, and what it did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.lifecycle import task_lives
from cystore.celery.lifecycle.task_lives import number_of, text_of
from cystore.celery.metrics.worker_signs import PIDS_MOST, WorkerSigns
from cystore.clock import now_ms
from cystore.metrics.text import label_text
from cystore.operate.output import time_text
from cystore.system.threads import os_threads
from cystore.web.answers.fleet_numbers import COLUMN_OF, SPAN_MS, TIME_S, Pass
from cystore.web.answers.open_stores import stores_of

WORKERS_MOST = 10_000
RUNNING_MOST = 20  # tasks of a worker that are shown


@dataclass
class _Worker:
    last_ms: int
    event: str | None
    seen: Counter[str] = field(default_factory=Counter)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    queues: Counter[str] = field(default_factory=Counter)
    pids: dict[tuple[str, int], int] = field(default_factory=dict)  # store and process: its newest event

    def saw(self, store: str, pid: int, time_ms: int) -> None:
        """One of its events; they come newest first."""
        if len(self.pids) < PIDS_MOST:
            self.pids.setdefault((store, pid), time_ms)


class Lives:
    """The signs of life of workers, by store. They are kept from request to request: a worker whose process was seen,
    and is gone, was killed."""

    def __init__(self) -> None:
        self._signs: dict[str, WorkerSigns] = {}
        self._lock = os_threads.Lock()

    def look(self, source: Source) -> str:
        """Looks at the processes; call it before the log is read. Returns the path of the first store."""
        with self._lock:
            for store in stores_of(source):
                self._signs.setdefault(str(store.path), WorkerSigns()).look(store)
        return str(stores_of(source)[0].path)

    def alive(self, workers: dict[str, _Worker]) -> set[str]:
        """The workers that live, as far as this host can see: in one of the stores."""
        names: dict[str, str] = {}
        with self._lock:
            for name, worker in workers.items():
                names[label_text(name)] = name
                for (store, pid), time_ms in reversed(worker.pids.items()):  # oldest first
                    self._signs[store].saw(name, pid, time_ms)
            found = set()
            for one in self._signs.values():
                one.settle()
                found |= {
                    names[label] for label, lives in one.alive(now_ms()).items() if lives and label in names
                }
        return found


def workers_of(source: Source, begin_ms: int | None, lives: Lives) -> dict[str, Any]:
    """Workers by their node names: whether each lives, when it wrote its last event, what it runs now, what it did in
    the span."""
    begin_ms = now_ms() - SPAN_MS if begin_ms is None else max(0, begin_ms)
    workers: dict[str, _Worker] = {}
    first = lives.look(source)
    settled: task_lives.Remembered[None] = task_lives.Remembered()
    read = Pass(history.events(source, begin_ms=begin_ms), TIME_S)
    for event in read:
        assert isinstance(event, Event)
        details = event.details
        name = text_of(details, "worker")
        is_newest = event.task_id is not None and event.task_id not in settled
        if event.task_id is not None and is_newest:
            settled.add(event.task_id, None)
        if name is None or (name not in workers and len(workers) >= WORKERS_MOST):
            continue
        worker = workers.setdefault(name, _Worker(event.time_ms, event.event))
        if not details.get("eager"):
            worker.saw(event.store or first, int(number_of(details, "pid") or 0), event.time_ms)
        column = COLUMN_OF.get(event.event or "")
        worker.seen[column or "other"] += 1
        queue = text_of(details, "queue")
        if queue is not None:
            worker.queues[queue] += 1
        if is_newest and event.event == events.STARTED and event.task_id is not None:
            worker.running[event.task_id] = {
                "id": event.task_id,
                "name": event.name,
                "started": time_text(event.time_ms),
                "pid": details.get("pid"),
            }
    alive = lives.alive(workers)
    ordered = sorted(workers.items(), key=lambda one: (-one[1].last_ms, one[0]))
    return {
        **read.told(begin_ms),
        "workers": [
            {
                "worker": name,
                "alive": name in alive,
                "last_seen": time_text(one.last_ms),
                "last_event": one.event,
                "running": len(one.running),
                "running_now": list(islice(one.running.values(), RUNNING_MOST)),
                "queues": sorted(one.queues),
                **{column: one.seen[column] for column in ("started", "succeeded", "failed", "retried")},
            }
            for name, one in ordered
        ],
    }
