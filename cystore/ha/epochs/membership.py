"""A replica's place in its group: its request to join, and its check of the master's answer."""

from __future__ import annotations

import logging

from cystore.engine.manifest.manifest import Manifest
from cystore.errors import ReplicationError
from cystore.ha.epochs.history import History, history_of, keep_history, parse_history
from cystore.ha.link.wire import Join, Joined

log = logging.getLogger("cystore")


class CutNeededError(ReplicationError):
    """The log differs from the master's from `position` on: the rest must be truncated."""

    def __init__(self, position: int, end: int) -> None:
        super().__init__(
            f"this log ends at {end}, but is equal to the master's only up to {position}", offset=position
        )
        self.position = position


class Membership:
    """A replica's membership during one connection to the master of `epoch`."""

    def __init__(self, manifest: Manifest, group: str, member: str, epoch: int) -> None:
        self._manifest, self._group, self._member, self.epoch = manifest, group, member, epoch
        self._masters: History | None = None

    def join(self) -> Join:
        history = history_of(self._manifest.snapshot())
        return Join(self._group, self._member, history.last_epoch, history.log_id, confirms=True)

    def joined(self, answer: Joined, begin: int, end: int, masters_end: int) -> None:
        """Compares this log of [begin, end) with the master's by their epochs. Raises CutNeededError,
        ReplicationError."""
        if answer.epoch != self.epoch:
            raise ReplicationError(
                f"the master has epoch {answer.epoch}, and etcd says {self.epoch}: looking again"
            )
        masters, mine = parse_history(answer.history), history_of(self._manifest.snapshot())
        if masters.last_epoch != self.epoch or not masters.log_id:
            raise ReplicationError(f"the master of epoch {self.epoch} has a history without it")
        self._masters = masters
        first = masters.begins[0].start
        if end == begin == 0:
            return
        if not mine.below(end).begins:
            # All of this log is older than the first election: the digest of its last record decides.
            if end > first:
                raise ReplicationError(
                    f"this log ends at {end}, and the group's first master began at {first}: start with an empty "
                    "directory"
                )
            return
        common = mine.common_end(end, masters, masters_end)
        if common < max(begin, 1):
            raise ReplicationError(
                "this log and the master's have no epoch in common: keep the directory, and start with an empty one"
            )
        if common < end:
            raise CutNeededError(common, end)

    def follows(self) -> None:
        """Takes over the master's history, because the logs are equal up to this log's end. Makes it durable before the
        first byte arrives. The in-sync set may still have this name from an earlier store; so a store that is new in
        the group is no candidate before it has caught up."""
        assert self._masters is not None
        mine = history_of(self._manifest.snapshot())
        new = mine.log_id != self._masters.log_id
        wanted = self._masters._replace(doubtful=mine.doubtful or new)
        if mine != wanted:
            keep_history(self._manifest, wanted)

    def caught_up(self) -> None:
        """Ends the doubt: this log has all records that the master had at the greeting, so all acknowledged ones."""
        mine = history_of(self._manifest.snapshot())
        if mine.doubtful:
            keep_history(self._manifest, mine._replace(doubtful=False))
