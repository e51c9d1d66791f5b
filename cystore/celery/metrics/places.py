"""The label sets of tasks, which are bounded, and what is counted for each.

A place is a pair of a task's name and its queue. The first `most` pairs have their own place. After that, a name that
has one gets a place for its other queues, and all other names share one. So an app that makes a million names costs
no more than `2 * most + 1` places.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from cystore.metrics.text import Samples, label_text

OTHER = "other"
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_ENDS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class Histogram:
    """Seconds in buckets."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * len(_ENDS)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def samples(self, labels: dict[str, str]) -> Samples:
        """Each bucket with the ones below it."""
        found: Samples = []
        total = 0
        for end, count in zip(_ENDS, self._counts, strict=True):
            total += count
            found.append(({**labels, "le": end}, total))
        return found


class Place:
    """The counts of the tasks of a name in a queue."""

    __slots__ = ("events", "labels", "runs", "waits")

    def __init__(self, name: str, queue: str) -> None:
        self.labels = {"name": name, "queue": queue}
        self.events: Counter[str] = Counter()
        self.runs, self.waits = Histogram(), Histogram()

    @property
    def queue(self) -> str:
        """The queue's name; empty if it is not known."""
        return self.labels["queue"]


class Places:
    """The places of one log."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[tuple[str, str], Place] = {}
        self._names: set[str] = set()
        self._own = 0

    def __iter__(self) -> Iterator[Place]:
        return iter(self._found.values())

    def of(self, name: str, queue: str) -> Place:
        """The place of a name and a queue."""
        key = label_text(name), label_text(queue)
        place = self._found.get(key)
        if place is not None:
            return place
        if self._own < self._most:
            self._own += 1
            self._names.add(key[0])
            return self._made(key)
        return self._made((key[0] if key[0] in self._names else OTHER, OTHER))

    def _made(self, key: tuple[str, str]) -> Place:
        place = self._found.get(key)
        if place is None:
            place = self._found[key] = Place(*key)
        return place
