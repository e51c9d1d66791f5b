"""One epoch of an elected master: it tells members its epoch and history, and refuses members that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cystore.errors import ReplicationError
from cystore.ha.epochs.history import History
from cystore.ha.epochs.in_sync import InSync
from cystore.ha.link.wire import Join, Joined


@dataclass
class Session:
    """`replaced` is called when a peer names a newer epoch: then the state in etcd must be read. `propose` asks etcd
    for an in-sync set."""

    group: str
    epoch: int
    history: History
    in_sync: InSync
    replaced: Callable[[], None]
    propose: Callable[[frozenset[str]], None]

    def admit(self, asked: Join) -> Joined:
        """Raises ReplicationError for a member of another group, log, or a newer epoch."""
        if asked.group != self.group:
            raise ReplicationError(
                f"the member {asked.member} is of group {asked.group!r}, this is {self.group!r}"
            )
        if asked.member == self.in_sync.me:
            raise ReplicationError(f"another store has this one's name {asked.member} (ha_member)")
        if asked.log_id and asked.log_id != self.history.log_id:
            raise ReplicationError(
                f"the member {asked.member} has another log ({asked.log_id}): start it with an empty directory"
            )
        if asked.epoch > self.epoch:
            self.replaced()
            raise ReplicationError(
                f"the member {asked.member} knows epoch {asked.epoch}, this master has {self.epoch}"
            )
        return Joined(self.epoch, self.history.as_json(), confirms=asked.confirms)

    def reported(
        self, positions: Mapping[str, int], wrote: int, flushed: int, known: int, now_s: float
    ) -> tuple[int, int]:
        """Takes the members' reports, and proposes another in-sync set if necessary. Returns the position up to which
        puts are acknowledged, and the one up to which readers see records: each member in sync has the log on its disk
        so far. `known` is the highest of these positions before."""
        self.in_sync.reported(positions, wrote, now_s)
        acknowledged = self.in_sync.acknowledged(flushed)
        confirmed = self.in_sync.confirmed(flushed, self.history.begins[-1].start)
        wanted = self.in_sync.wanted(positions, max(confirmed, known), now_s)
        if wanted is not None:
            self.in_sync.pending = wanted
            self.propose(wanted)
        return acknowledged, confirmed

    def answered(self, in_sync: frozenset[str], has: bool) -> None:
        """Takes etcd's answer: whether it has the proposed set."""
        if has:
            self.in_sync.committed = in_sync
        self.in_sync.pending = None
