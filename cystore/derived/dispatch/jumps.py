"""Judges a jump: a record's queue offset is higher than the next one of its queue. Usually the records between are
lost. But RocketMQ's checksum does not cover queue offsets: one flipped bit makes a jump, too. If dispatch believes it,
the intact records behind get no entries.

A record is called damaged only if that is certain: the queue never gave the offset, or the log has no room for the
records before it, or most of the queue's next four records contradict it and no known loss explains it.

It is left out of its queue, but not called damaged, if the queue's next record has an offset of the jump, too: then
one of the two is wrong. One fault makes this record wrong. For the other to be wrong, the records between must be
lost. If there is damage that may have taken these, two records must speak against the jump.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

from cystore._native.lookup import sequence
from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow
from cystore.derived.dispatch.resume import DamageSearch
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.given_up_offsets import BELIEVED_GAP, GivenUp
from cystore.layout import CONSTANTS
from cystore.system.threads.reentry import undisturbed

RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
NO_ROOM = "the log has no room for the records between"
FOLLOWERS = 4  # next records of the queue that are asked
DAMAGES_MAX = 8  # damaged ranges of the log that the search for them steps over
FAR_BYTES = 4 << 20  # of log searched for them; some 3 ms
NEAR_BYTES = 256 << 10  # the same behind damage, in which every queue may have lost records


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


def repeated(expected: int, found: int, followers: Sequence[int], *, votes: int = 1) -> bool:
    """Whether the queue's next record, or each of the next `votes`, has an offset that cannot stand behind `found`."""
    some = list(followers[:votes])
    return len(some) == votes and expected <= some[0] and some[-1] <= found and some == sorted(set(some))


def filled(expected: int, found: int, followers: Sequence[int]) -> bool:
    """Whether the queue's next records have all offsets from `expected` up to `found`: then no record is lost, and each
    of the offsets gets an entry without this record."""
    count = found - expected + 1
    return count <= len(followers) and list(followers[:count]) == list(range(expected, found + 1))


class Judgement(NamedTuple):
    """Why a queue offset is wrong; empty: it is believed. `certain`: the record is damaged. Otherwise another one may
    be, and this one gets no entry in the queue."""

    problem: str = ""
    certain: bool = True


BELIEVED = Judgement()


class JumpCheck:
    """The check of one store's dispatcher. `loaded` are slots of queues that dispatch itself entered in the table: no
    append counts their `next`."""

    def __init__(self, control: Control, commit_log: CommitLog, given_up: Callable[[], GivenUp]) -> None:
        self._control, self._commit_log, self._given_up = control, commit_log, given_up
        self.loaded: set[int] = set()

    def judge(
        self, queue: ConsumeQueue, record: Message, expected: int, found: int, *, light: bool
    ) -> Judgement:
        """Judges the queue offset `found` of a record where `expected` is next. `light`: it is an offset in a light
        queue."""
        position = record.physical_offset
        least_bytes = (found - expected) * RECORD_SIZE_MIN
        if self._given_up().explains((queue.topic, queue.queue_id), expected, found):
            return BELIEVED
        has_files = queue.has_files()
        last_end = queue.end_of_last_record() if has_files else 0
        has_room = least_bytes <= position - last_end
        if record.record_format == "cystore":  # the checksum covers the number
            believed = not has_files or has_room or found - expected <= BELIEVED_GAP
            return BELIEVED if believed else Judgement(NO_ROOM)
        if queue.slot not in self.loaded and found >= (following := self._next(queue.slot)):
            return Judgement(f"the queue gave no offset from {following} on")
        if least_bytes > position:
            return Judgement(NO_ROOM)
        explained = least_bytes <= self._lost_bytes(last_end, position)
        followers = self._followers(
            queue, position + record.size_bytes, expected, NEAR_BYTES if explained else FAR_BYTES
        )
        problem = f"the next records have {followers}"
        votes, slack = (3, 1) if has_room or explained else (2, 0)
        if not has_room and not explained and not self._lost_bytes(0, position):
            votes = max(min(votes, len(followers)), 1)
        if (continued if light else contradicted)(expected, found, followers, votes=votes, slack=slack):
            return Judgement(problem, certain=not explained)
        # Compaction copies records of a light queue behind those that were removed.
        votes = 1 if not explained else FOLLOWERS if light else 2
        if repeated(expected, found, followers, votes=votes) or filled(expected, found, followers):
            return Judgement(problem, certain=False)
        return BELIEVED

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

    def _followers(self, queue: ConsumeQueue, position: int, least: int, look_ahead: int) -> list[int]:
        """The offsets of the queue's next records, over damage."""
        control, log = self._control, self._commit_log
        minimum, end = control.min_physical_offset, min(control.wrote, position + look_ahead)
        found: list[int] = []
        for _ in range(DAMAGES_MAX):
            window = LogWindow(log.segment_for, log.damaged_ranges.ranges())
            more, position = sequence.next_offsets(
                window,
                minimum,
                end,
                position,
                queue.topic.encode(),
                queue.queue_id,
                least,
                FOLLOWERS - len(found),
            )
            found += more
            if len(found) == FOLLOWERS or position >= end:
                break
            search = DamageSearch(log, position, "damaged")
            while not search.step(end):
                pass
            position = search.end
        return found
