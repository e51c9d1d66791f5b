"""The in-sync set as its master sees it: who has to acknowledge, who has been too slow, who has caught up.

A record is acknowledged when it is on the disk of every member of the set. The set itself is in etcd, and this master
may be the last to know it: so a member that is about to be added has to acknowledge before etcd knows, and one that is
about to go until etcd has said so. Source: AutoSwitchHAService.syncStateSet of RocketMQ 5; KIP-497 of Kafka ("maximal"
in-sync set).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class _Member:
    acknowledged: int = -1  # on its disk, as it reported it last
    caught_up_s: float = 0.0  # when it had all that the log had then
    goal: int = -1  # the log's end at `goal_s`: when it has this, it had caught up then
    goal_s: float = 0.0


@dataclass
class InSync:
    """`me` is the master. `committed` is the set that etcd has. Times are of the monotonic clock, s."""

    me: str
    committed: frozenset[str]
    lag_s: float
    needed: int = 1  # with fewer members nothing is acknowledged, a put that began before neither
    pending: frozenset[str] | None = None  # asked of etcd, and not answered yet
    _known: dict[str, _Member] = field(default_factory=dict)

    @property
    def required(self) -> frozenset[str]:
        """The members that have to acknowledge: those of the committed set, and of the one that was asked for."""
        return self.committed | (self.pending or frozenset())

    def begin(self, now_s: float) -> None:
        """Nobody has been too slow so far."""
        for name in self.committed:
            self._known.setdefault(name, _Member(caught_up_s=now_s))

    def reported(self, positions: Mapping[str, int], wrote: int, now_s: float) -> None:
        """Where the connected members are. The others do not catch up."""
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

    def acknowledged(self, flushed: int) -> int:
        """Everything below is on the disk of every member that is required; `flushed` is this one's. -1 with too few
        members."""
        if len(self.committed) < self.needed:
            return -1
        others = (
            self._known[name].acknowledged if name in self._known else -1
            for name in self.required - {self.me}
        )
        return min(flushed, *others, flushed)

    def wanted(self, positions: Mapping[str, int], acknowledged: int, now_s: float) -> frozenset[str] | None:
        """The set that etcd should have; None when it is right, or was asked and did not answer yet.

        A member goes when it did not catch up for `lag_s`, and at once when it lost what it had acknowledged. One comes
        when it is connected, has caught up, and has all that was acknowledged."""
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
