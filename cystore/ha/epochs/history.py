"""The history of a log: for each epoch, the offset where its master began to append. It is durable in the manifest of
each replica.

Within an epoch, one master appends, and its log never gets shorter. So two logs that have a byte of the same epoch at
the same offset are equal up to there. Source: EpochFileCache of RocketMQ 5, which keeps the same pairs in its own file.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.errors import ReplicationError

SECTION = "epochs"  # in the manifest
EPOCHS_MAX = 256  # the newest epochs are kept; a replica that is older than all of them starts empty


class Begin(NamedTuple):
    """An epoch and the physical offset of its first byte."""

    epoch: int
    start: int


class History(NamedTuple):
    """`log_id`: of the log that all members of a group share, "" for a log that never had an elected master. `begins`:
    oldest first. `doubtful`: the disk lost durable records, or this store is new in its group. Such a store is no
    candidate before it has caught up."""

    log_id: str = ""
    begins: tuple[Begin, ...] = ()
    doubtful: bool = False

    @property
    def last_epoch(self) -> int:
        """The newest epoch, 0 without one."""
        return self.begins[-1].epoch if self.begins else 0

    def below(self, end: int) -> History:
        """Without epochs that have no byte below `end`."""
        return self._replace(begins=tuple(one for one in self.begins if one.start < end))

    def begun(self, epoch: int, start: int) -> History:
        """With a new epoch, whose master's log ends at `start`. Raises ReplicationError if the epoch is not new."""
        if epoch <= self.last_epoch:
            raise ReplicationError(f"epoch {epoch} is not newer than {self.last_epoch}, which this log has")
        kept = self.below(start).begins
        return self._replace(begins=(*kept, Begin(epoch, start))[-EPOCHS_MAX:])

    def ends(self, end: int) -> dict[Begin, int]:
        """Each epoch that has bytes in a log that ends at `end`, with the end of these bytes."""
        begins = self.below(end).begins
        nexts = [*(one.start for one in begins), end][1:]
        return {one: behind for one, behind in zip(begins, nexts, strict=True) if one.start < behind}

    def common_end(self, end: int, other: History, others_end: int) -> int:
        """The offset up to which two logs are equal: one has this history and ends at `end`, the second has the `other`
        history and ends at `others_end`. -1 if they share no epoch."""
        mine, theirs = self.ends(end), other.ends(others_end)
        return max((min(behind, theirs[one]) for one, behind in mine.items() if one in theirs), default=-1)

    def as_json(self) -> dict[str, Any]:
        """The history as JSON values."""
        known = {"log_id": self.log_id, "begins": [list(one) for one in self.begins]}
        return {**known, "doubtful": True} if self.doubtful else known


def parse_history(found: Any) -> History:
    """The history in JSON. Raises ReplicationError."""
    try:
        begins = tuple(Begin(*pair) for pair in found["begins"])
        log_id = found["log_id"]
    except (KeyError, TypeError, ValueError) as error:
        raise ReplicationError(f"a history of epochs that cannot be read: {error!r}") from None
    numbers = [number for one in begins for number in one]
    increasing = all(a.epoch < b.epoch and a.start <= b.start for a, b in itertools.pairwise(begins))
    if (
        type(log_id) is not str
        or any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers)
        or not increasing
        or len(begins) > EPOCHS_MAX
    ):
        raise ReplicationError(f"a history of epochs that makes no sense: {str(found)[:200]}")
    return History(log_id, begins, found.get("doubtful") is True)


def history_of(facts: Facts) -> History:
    """The history in the manifest."""
    found: Any = facts.sections.get(SECTION)
    return History() if found is None else parse_history(found)


def keep_history(manifest: Manifest, history: History) -> None:
    """Makes the history durable; the first byte of its last epoch is appended after that."""
    manifest.set_section(SECTION, history.as_json())


def doubt_history(manifest: Manifest) -> None:
    """Marks the history as doubtful: recovery found that the disk lost durable records, and this store may have
    acknowledged some of them."""
    history = history_of(manifest.snapshot())
    if history.begins:
        keep_history(manifest, history._replace(doubtful=True))
