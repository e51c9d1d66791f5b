"""The master's view of the in-sync set: the members that must acknowledge, are too slow, or have caught up.

A record is acknowledged when it is on the disk of every member of the set. The set itself is in etcd, and this master
may be the last to learn of a change. So a member that is to be added must acknowledge before etcd has it, and a member
that is to be removed must acknowledge until etcd has confirmed that. Source: AutoSwitchHAService.syncStateSet of
RocketMQ 5; KIP-497 of Kafka ("maximal" in-sync set).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class _Member:
    acknowledged: int = -1  # the position on its disk, by its last report
    caught_up_s: float = 0.0  # the last time of which it is known that the member had the whole log
    goal: int = (
        -1
    )  # the log's end at `goal_s`: a member that reaches it had caught up with the log of that time
    goal_s: float = 0.0


@dataclass
class InSync:
    """`me` is the master. `committed` is the set that etcd has. Times are of the monotonic clock, s."""

    me: str
    committed: frozenset[str]
    lag_s: float
    needed: int = 1  # with fewer members no put is acknowledged, not even one that began before
    pending: frozenset[str] | None = None  # the set that etcd was asked for and has not answered yet
    _known: dict[str, _Member] = field(default_factory=dict)

    @property
    def required(self) -> frozenset[str]:
        """The members that must acknowledge: those of the committed set and of the pending set."""
        return self.committed | (self.pending or frozenset())

    def begin(self, now_s: float) -> None:
        """Counts the time of every member from now on, so that no member is too slow yet."""
        for name in self.committed:
            self._known.setdefault(name, _Member(caught_up_s=now_s))

    def reported(self, positions: Mapping[str, int], wrote: int, now_s: float) -> None:
        """Takes the positions of the connected members. Members without a connection do not catch up."""
        for name, position in positions.items():
            one = self._known.setdefault(name, _Member(caught_up_s=-self.lag_s))
            one.acknowledged = position
            if position >= wrote:
                one.caught_up_s, one.goal = now_s, -1
            else:
                if 0 <= one.goal <= position:
                    one.caught_up_s, one.goal = one.goal_s, -1
                if one.goal < 0:
                    one.goal, one.goal_s = wrote, now_s
        for name, one in self._known.items():
            if name not in positions:
                one.goal = -1

    def on_every_disk(self, flushed: int) -> int:
        """The position that every required member has on its disk, whether there are enough members or not; `flushed`
        is the master's own. -1 if a member has reported nothing yet."""
        return min(flushed, self._on_other_disks())

    def awaits_reports(self, flushed: int) -> bool:
        """Whether the master's own disk has all that the slowest of the others has: then it acknowledges no more before
        another report, however far its own disk gets."""
        return self._on_other_disks() <= flushed

    def _on_other_disks(self) -> int:
        others = (
            self._known[name].acknowledged if name in self._known else -1
            for name in self.required - {self.me}
        )
        return min(others, default=sys.maxsize)

    def acknowledged(self, flushed: int) -> int:
        """The position up to which puts are acknowledged: `on_every_disk`, or -1 if there are too few members."""
        return -1 if len(self.committed) < self.needed else self.on_every_disk(flushed)

    def confirmed(self, flushed: int, start: int) -> int:
        """The position up to which readers see records. Earlier epochs wrote the log below `start`, and every member of
        the set is in their succession: for that part the number of members does not matter."""
        position = self.on_every_disk(flushed)
        return min(position, start) if len(self.committed) < self.needed else position

    def wanted(self, positions: Mapping[str, int], acknowledged: int, now_s: float) -> frozenset[str] | None:
        """The set that etcd should have; None if etcd has it, or has not answered a request yet.

        A member leaves if it did not catch up for `lag_s`, and at once if it lost acknowledged records. A member enters
        if it is connected, has caught up, and has all acknowledged records."""
        if self.pending is not None:
            return None
        gone = {
            name
            for name in self.committed - {self.me}
            if now_s - self._known.setdefault(name, _Member(caught_up_s=now_s)).caught_up_s > self.lag_s
            or positions.get(name, acknowledged) < acknowledged
        }
        come = {
            name
            for name, position in positions.items()
            if name not in self.committed
            and position >= acknowledged
            and now_s - self._known[name].caught_up_s <= self.lag_s
        }
        wanted = (self.committed - gone) | come | {self.me}
        return None if wanted == self.committed else frozenset(wanted)
