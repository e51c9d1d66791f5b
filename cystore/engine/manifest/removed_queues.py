"""Removed queues: topics that an operator deleted while their records still stand in the log.

The manifest lists for each such queue the queue offset up to which it was removed. Recovery, dispatch and verify ignore
the records below, so the queue does not come back out of the log. The queue continues to count: its next message gets
the next queue offset.

Queues whose messages all expired are listed too, so their count stands in two files. If very many are listed, queues
without records in the log are dropped first: then config/queueOffset.json alone keeps their count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cystore.engine.manifest.given_up_offsets import OFFSET_LIMIT

Key = tuple[str, int]
KEPT = 4096


class RemovedQueue(NamedTuple):
    """The messages below queue offset `end` were removed; their records are below the physical offset
    `physical_end`."""

    topic: str
    queue_id: int
    end: int
    physical_end: int


class Removed:
    """The removed queues of a store; one row a queue. Immutable."""

    def __init__(self, rows: Iterable[RemovedQueue] = ()) -> None:
        self._by_queue: dict[Key, tuple[int, int]] = {}
        for topic, queue_id, end, physical_end in sorted(rows):
            if not (0 < end <= OFFSET_LIMIT and 0 <= physical_end <= OFFSET_LIMIT and queue_id >= 0):
                raise ValueError(
                    f"queue {topic}/{queue_id} removed up to {end}, physical offset {physical_end}"
                )
            before = self._by_queue.get((topic, queue_id), (0, 0))
            self._by_queue[topic, queue_id] = max(end, before[0]), max(physical_end, before[1])

    def __iter__(self) -> Iterator[RemovedQueue]:
        for key, ends in self._by_queue.items():
            yield RemovedQueue(*key, *ends)

    def keys(self) -> Iterable[Key]:
        """The queues: (topic, queue id)."""
        return self._by_queue.keys()

    def __len__(self) -> int:
        return len(self._by_queue)

    def __contains__(self, key: object) -> bool:
        return key in self._by_queue

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Removed) and self._by_queue == other._by_queue

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Removed({list(self)})"

    def end(self, key: Key) -> int:
        """The queue offset up to which a queue was removed; 0 if it was not."""
        return self._by_queue.get(key, (0, 0))[0]

    def physical_end(self, key: Key) -> int:
        """The physical offset behind the removed records of a queue; 0 without any."""
        return self._by_queue.get(key, (0, 0))[1]

    def merged(self, more: Iterable[RemovedQueue]) -> Removed:
        """These rows and `more`, merged; of two rows for a queue the higher ends count."""
        return Removed([*self, *more])

    def has_too_many(self, minimum: int) -> bool:
        """Whether there are more than `KEPT` queues whose removed records are all below the log's minimum."""
        return len(self) > KEPT and sum(row.physical_end <= minimum for row in self) > KEPT

    def without_expired(self, minimum: int) -> Removed:
        """Drops queues whose removed records are all below the log's minimum, except the newest `KEPT` // 2 of them."""
        gone = sorted((row for row in self if row.physical_end <= minimum), key=lambda row: row.physical_end)
        dropped = set(gone[: max(len(gone) - KEPT // 2, 0)])
        return Removed(row for row in self if row not in dropped)


def removed_of(row: object) -> RemovedQueue:
    """The removed queue that a row in JSON names. Raises ValueError."""
    if not isinstance(row, list) or [type(part) for part in row] != [str, int, int, int]:
        raise ValueError(f"{row!r} is not a removed queue")
    return RemovedQueue(*row)
