"""Queues and index follow the log's minimum, on their own and in small turns.

Source: DefaultMessageStore.CleanConsumeQueueService. The log does not wait for it: for every reader, entries that point
below the log's minimum already are OFFSET_TOO_SMALL or no hit. One atomic step moves a queue's minimum. It holds no
lock that an append, a dispatch or an allocation needs. The turns are under the lock "clean", so one process does them
at a time. If a round is killed, the next one begins anew.
"""

from __future__ import annotations

from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.system.threads.reentry import undisturbed
from cystore.value_class import value_class

TURN_S = 0.005  # under the lock


@value_class
class Followed:
    """The number of removed files."""

    queue_files: int = 0
    index_files: int = 0


class Follower:
    """Makes the queues and the index of one store follow its log."""

    def __init__(self, control: Control, queues: ConsumeQueues, index: IndexFiles) -> None:
        self._control, self._queues, self._index = control, queues, index
        self._target = self._slot = 0  # this process's present round: the minimum, and the next queue

    @property
    def behind(self) -> bool:
        """Whether something may lead below the log's minimum."""
        return self._control.followed < self._control.min_physical_offset

    def run(self, until_s: float | None = None) -> Followed:
        """Follows until the time is up, or to the end."""
        done = Followed()
        while self.behind and (until_s is None or monotonic_s() < until_s):
            done.queue_files += undisturbed(self._turn)
            if self._target <= self._control.followed:
                done.index_files += self._index.remove_below(self._target)
        return done

    def _turn(self) -> int:
        """Handles as many queues as time allows; returns the number of removed files."""
        with self._control.held("clean"):
            return self._follow()

    def _follow(self) -> int:
        control, until_s, removed = self._control, monotonic_s() + TURN_S, 0
        if self._target <= self._control.followed:
            self._target, self._slot = control.min_physical_offset, 0
        while self._slot < control.queue_count:
            removed += self._queue(self._slot)
            self._slot += 1
            if monotonic_s() >= until_s:
                return removed
        self._control.followed = self._target
        return removed

    def _queue(self, slot: int) -> int:
        queue = self._queues.get(slot)
        minimum = queue.offset_at(self._target)
        if minimum > queue.min_offset:
            self._control.raise_queue_minimum(slot, minimum)
            failpoint("clean.queue_minimum")
        return queue.remove_expired()
