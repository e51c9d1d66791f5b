"""Given-up queue offsets: offsets that were handed out and whose records are lost. They are not handed out again.

Recovery finds them and lists them in the manifest. The list explains a gap in the queue offsets of the log when
nothing else does any more: the damaged bytes may be cut, and the hole entries of the consume queue are gone when the
queue is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

# A gap in queue offsets is believed up to this many; beyond it the number itself is damaged.
BELIEVED_GAP = 1 << 20
OFFSET_LIMIT = 1 << 58


class GivenUpRange(NamedTuple):
    """Queue offsets [begin, end) of one queue."""

    topic: str
    queue_id: int
    begin: int
    end: int


class GivenUp:
    """The given-up offsets of a store: for each queue ranges that ascend and lie apart. Immutable."""

    def __init__(self, ranges: Iterable[GivenUpRange] = ()) -> None:
        self._by_queue: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, queue_id, begin, end in sorted(ranges):
            if not (0 <= begin < end <= OFFSET_LIMIT and queue_id >= 0):
                raise ValueError(f"given-up offsets {begin}..{end} of {topic}/{queue_id}")
            listed = self._by_queue.setdefault((topic, queue_id), [])
            if listed and begin <= listed[-1][1]:
                listed[-1] = listed[-1][0], max(end, listed[-1][1])
            else:
                listed.append((begin, end))

    def __iter__(self) -> Iterator[GivenUpRange]:
        for key, listed in self._by_queue.items():
            for begin, end in listed:
                yield GivenUpRange(*key, begin, end)

    def __len__(self) -> int:
        return sum(len(listed) for listed in self._by_queue.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenUp) and self._by_queue == other._by_queue

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"GivenUp({list(self)})"

    def explains(self, key: tuple[str, int], begin: int, end: int) -> bool:
        """Whether each offset of [begin, end) of a queue is given up."""
        return any(first <= begin and end <= last for first, last in self._by_queue.get(key, ()))

    def end(self, key: tuple[str, int]) -> int:
        """The offset behind the last given-up one of a queue; 0 without any."""
        listed = self._by_queue.get(key)
        return listed[-1][1] if listed else 0

    def merged(self, more: Iterable[GivenUpRange]) -> GivenUp:
        """These offsets and `more`, merged."""
        return GivenUp([*self, *more])

    def without_expired(self, minimums: Mapping[tuple[str, int], int]) -> GivenUp:
        """These offsets without the ranges that end below the lowest offset of their queue's records in the log
        (`minimums`)."""
        return GivenUp(r for r in self if r.end >= minimums.get((r.topic, r.queue_id), 0))


def range_of(row: object) -> GivenUpRange:
    """The range that a row in JSON names. Raises ValueError."""
    if not isinstance(row, list) or [type(part) for part in row] != [str, int, int, int]:
        raise ValueError(f"{row!r} is not a range of queue offsets")
    return GivenUpRange(*row)
