"""Judges a jump: a record's queue offset is higher than the next one of its queue. Usually the records between are
lost. But RocketMQ's checksum does not cover queue offsets: one flipped bit makes a jump, too. If dispatch believes it,
the intact records behind get no entries.

A queue offset is called wrong only if that is certain: the queue never gave it, or the log has no room for the records
before it, or the queue's next records contradict it and no known loss explains the jump.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from cystore._native.lookup import sequence
from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.given_up_offsets import BELIEVED_GAP, GivenUp
from cystore.layout import CONSTANTS
from cystore.system.threads.reentry import undisturbed

RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
NO_ROOM = "the log has no room for the records between"
FOLLOWERS = 4  # next records of the queue that are asked


def contradicted(
    expected: int, found: int, followers: Sequence[int], *, votes: int = 3, slack: int = 1
) -> bool:
    """Whether at least `votes` of the queue's next records contradict the queue offset `found` where `expected` is
    next. `followers` are their queue offsets.

    The offsets of a queue rise, so follower number n has at least `found` + n; less `slack` for damaged records of
    other queues that may be among them."""
    against = [
        number for place, number in enumerate(followers, 1) if expected <= number < found + place - slack
    ]
    return any(list(some) == sorted(set(some)) for some in combinations(against, votes))


def continued(expected: int, found: int, followers: Sequence[int], *, votes: int = 3, slack: int = 1) -> bool:
    """The same for a light queue: the next records are exactly those behind `expected`. Older offsets may follow in a
    sound log, because compaction copies records with their properties."""
    return found - expected > slack and list(followers[:votes]) == [
        expected + place for place in range(1, votes + 1)
    ]


class JumpCheck:
    """The check of one store's dispatcher. `loaded` are slots of queues that dispatch itself entered in the table: no
    append counts their `next`."""

    def __init__(self, control: Control, commit_log: CommitLog, given_up: Callable[[], GivenUp]) -> None:
        self._control, self._commit_log, self._given_up = control, commit_log, given_up
        self.loaded: set[int] = set()

    def problem(self, queue: ConsumeQueue, record: Message, expected: int, found: int, *, light: bool) -> str:
        """Says why the queue offset `found` of a record is wrong; empty if it is believed. `light`: it is an offset in
        a light queue."""
        position = record.physical_offset
        least_bytes = (found - expected) * RECORD_SIZE_MIN
        if self._given_up().explains((queue.topic, queue.queue_id), expected, found):
            return ""
        has_files = queue.has_files()
        last_end = queue.end_of_last_record() if has_files else 0
        has_room = least_bytes <= position - last_end
        if record.record_format == "cystore":  # the checksum covers the number
            believed = not has_files or has_room or found - expected <= BELIEVED_GAP
            return "" if believed else NO_ROOM
        if queue.slot not in self.loaded and found >= (following := self._next(queue.slot)):
            return f"the queue gave no offset from {following} on"
        if least_bytes > position:
            return NO_ROOM
        if least_bytes <= self._lost_bytes(last_end, position):
            return ""
        followers = self._followers(queue, position + record.size_bytes, expected)
        votes, slack = (3, 1) if has_room else (2, 0)
        if not has_room and not self._lost_bytes(0, position):
            votes = max(min(votes, len(followers)), 1)
        wrong = (continued if light else contradicted)(expected, found, followers, votes=votes, slack=slack)
        return f"the next records have {followers}" if wrong else ""

    def _next(self, slot: int) -> int:
        """The queue offset of a queue's next message. Whoever enters the append lock counts the records that a killed
        process published and did not count."""

        def locked() -> int:
            with self._control.held("append"):
                return self._control.queue_next(slot)

        return undisturbed(locked)

    def _lost_bytes(self, begin: int, end: int) -> int:
        """The bytes of [begin, end) that are known to be damaged or removed."""
        minimum = min(max(self._control.min_physical_offset, begin), end)
        damaged = self._commit_log.damaged_ranges.within(minimum, end)
        return minimum - begin + sum(min(last, end) - max(first, minimum) for first, last in damaged.ranges())

    def _followers(self, queue: ConsumeQueue, position: int, least: int) -> list[int]:
        control, log = self._control, self._commit_log
        window = LogWindow(log.segment_for, log.damaged_ranges.ranges())
        minimum, wrote, name = control.min_physical_offset, control.wrote, queue.topic.encode()
        return sequence.next_offsets(window, minimum, wrote, position, name, queue.queue_id, least, FOLLOWERS)
