"""Numbers about tasks by name, from the lifecycle log: outcomes and run times. One pass, whose memory grows only with
the number of names.

Percentiles come from buckets whose bounds grow by 2 %: the value given is within 1 % of the true one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cystore.celery.base import events, reading, records
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.lifecycle.task_lives import number_of

GROWTH = math.log(1.02)
LEAST_S = 1e-7
COUNTED = (events.SUCCEEDED, *events.FAILURES, events.RETRIED)


class Runtimes:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Counts one."""
        self.count += 1
        self._buckets[math.floor(math.log(max(seconds, LEAST_S)) / GROWTH)] += 1

    def percentile(self, percent: float) -> float | None:
        """The time within which this percentage is done (nearest rank); None if nothing was counted."""
        rank, seen = max(1, math.ceil(self.count * percent / 100)), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return math.exp((bucket + 0.5) * GROWTH)
        return None


@dataclass
class NameStats:
    """The outcomes of the runs of one task name. A run that the broker redelivers has not ended."""

    name: str
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    runtimes: Runtimes = field(default_factory=Runtimes)

    @property
    def count(self) -> int:
        """Runs that ended, in success or failure."""
        return self.succeeded + self.failed

    @property
    def failure_rate(self) -> float:
        """The part of them that failed, 0 to 1."""
        return self.failed / self.count if self.count else 0.0

    def add(self, event: Event) -> None:
        """Counts one event."""
        if event.event == events.RETRIED:
            self.retried += 1
            return
        details = event.details
        if details.get("requeue"):
            return
        if event.event == events.SUCCEEDED:
            self.succeeded += 1
        else:
            self.failed += 1
        runtime = number_of(details, "runtime")
        if runtime is not None:
            self.runtimes.add(runtime)


def by_name(
    store: Source, *, name: str | None = None, begin_ms: int = 0, end_ms: int | None = None
) -> list[NameStats]:
    """The numbers of each name with any, from `begin_ms` to `end_ms`; the most frequent first."""
    name = name and records.kept_name(name)
    queues = None if name is None else (records.queue_of(name),)
    found = reading.of_queues(
        store, events.EVENTS, queues, tags=COUNTED, begin_ms=begin_ms, end_ms=end_ms, ordered=False
    )
    stats = totals(map(Event.of, found))
    return [one for one in stats if name in (None, one.name)]


def totals(found: Iterable[Event]) -> list[NameStats]:
    """The numbers of some events."""
    stats: dict[str, NameStats] = {}
    for event in found:
        name = event.name or ""
        if name not in stats:
            stats[name] = NameStats(name)
        stats[name].add(event)
    return sorted(stats.values(), key=lambda one: (-one.count, one.name))
