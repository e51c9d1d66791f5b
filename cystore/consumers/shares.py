"""The division of queues among the consumers of a group: each consumer computes its own share, as RocketMQ's clients do
(AllocateMessageQueueAveragely).

A consumer has the lock of a member's place for each topic, and the lock of each queue that it reads. Both are byte
locks: the kernel ends them with their owner, so a killed process is no member any more and its queues are free. The
share names the queues that a consumer should have, the locks the queues that it has. So two consumers never read the
same queue, even while they see different members.
"""

from __future__ import annotations

from collections.abc import Sequence

from cystore.consumers.table import LEASES, MEMBERS, MEMBERS_MAX
from cystore.errors import StoreResourceError
from cystore.system.key_lock import PlaceLocks


def share(queue_ids: Sequence[int], members: int, number: int) -> list[int]:
    """The queues of member `number` of `members`, which are neighbours. If the queues do not divide evenly, the first
    members have one more."""
    each, more = divmod(len(queue_ids), members)
    begin = number * each + min(number, more)
    return list(queue_ids[begin : begin + each + (number < more)])


class Member:
    """A consumer as a member of its group for one topic. `row` is the table's row of the topic and group."""

    def __init__(self, locks: PlaceLocks, row: int) -> None:
        self._locks, self._begin = locks, MEMBERS + row * MEMBERS_MAX
        self._place = self._take()

    def _take(self) -> int:
        taken = set(self._locks.others(self._begin, self._begin + MEMBERS_MAX))
        for place in range(self._begin, self._begin + MEMBERS_MAX):
            if place not in taken and self._locks.try_take(place):
                return place
        raise StoreResourceError(
            f"the group has {MEMBERS_MAX} consumers for a topic already, and no more have room"
        )

    def share(self, queue_ids: Sequence[int]) -> list[int]:
        """This member's share now."""
        others = self._locks.others(self._begin, self._begin + MEMBERS_MAX)
        return share(queue_ids, len(others) + 1, sum(place < self._place for place in others))


class Leases:
    """The locks of the queues."""

    def __init__(self, locks: PlaceLocks) -> None:
        self._locks = locks
        self._rows: set[int] = set()

    def try_take(self, row: int) -> bool:
        """Takes the queue of a row; False while another consumer has it."""
        self._rows.add(row)
        return self._locks.try_take(LEASES + row)

    def keep(self, rows: set[int]) -> None:
        """Gives back the locks of all other queues, also of a queue that an interrupted call took and did not enter."""
        for row in self._rows - rows:
            self._locks.give(LEASES + row)
        self._rows &= rows
