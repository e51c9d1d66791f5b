"""The plan of recovery: its steps as data."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.recovery.walk.findings import IndexMend, ScanResult


class PutAside(NamedTuple):
    """Copy [begin, end) of the log to quarantine/."""

    begin: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"copy log bytes {self.begin}..{self.end} to quarantine/ ({self.why})"


class ZeroLog(NamedTuple):
    """Make [begin, end) of the log zero."""

    begin: int
    end: int

    def __str__(self) -> str:
        return f"zero log bytes {self.begin}..{self.end}"


class MoveLogFile(NamedTuple):
    """Rename a commit log file into quarantine/."""

    base: int

    def __str__(self) -> str:
        return f"move commit log file {self.base} to quarantine/"


class RemoveLogFile(NamedTuple):
    """Unlink an all-zero commit log file that has a gap before it."""

    base: int

    def __str__(self) -> str:
        return f"remove empty commit log file {self.base}"


class RemoveFile(NamedTuple):
    """Unlink a derived file."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"


class ExtendLogFile(NamedTuple):
    """Give a commit log file that was cut short its length back."""

    base: int
    length: int

    def __str__(self) -> str:
        return f"extend commit log file {self.base} from {self.length} bytes"


class CutQueue(NamedTuple):
    """Remove all entries of a consume queue from queue offset `end` on."""

    topic: str
    queue_id: int
    end: int

    def __str__(self) -> str:
        return f"cut consume queue {self.topic}/{self.queue_id} at queue offset {self.end}"


class FillQueueHoles(NamedTuple):
    """Turn queue offsets [begin, end) into hole entries."""

    topic: str
    queue_id: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"mark queue offsets {self.begin}..{self.end} of {self.topic}/{self.queue_id} as lost"


class MendIndex(NamedTuple):
    """Keep the first entries of an index file and make its slots point to them."""

    mend: IndexMend

    def __str__(self) -> str:
        return f"keep {self.mend.keep - 1} entries of index file {self.mend.path}"


class WriteDamagedRanges(NamedTuple):
    """List the damaged ranges in the manifest and in quarantine/holes.json."""

    damaged_ranges: DamagedRanges

    def __str__(self) -> str:
        return f"write {len(self.damaged_ranges)} damaged ranges to quarantine/holes.json"


class WriteGivenUp(NamedTuple):
    """Write the list of given-up queue offsets."""

    given_up: GivenUp

    def __str__(self) -> str:
        return f"list {len(self.given_up)} ranges of queue offsets as given up"


Action = (
    PutAside
    | ZeroLog
    | MoveLogFile
    | RemoveLogFile
    | RemoveFile
    | ExtendLogFile
    | CutQueue
    | FillQueueHoles
    | MendIndex
    | WriteDamagedRanges
    | WriteGivenUp
)


class RecoveryPlan(NamedTuple):
    """The steps of recovery, in this order; printable. `damaged_ranges` are those of the log afterwards."""

    scan: ScanResult
    actions: tuple[Action, ...]
    damaged_ranges: DamagedRanges

    def lines(self) -> list[str]:
        """The plan in words, for people, one fact a line."""
        log = self.scan.log
        out = [
            f"log {log.begin}..{log.end}, checked from {log.start}: {log.records} records, then {log.reason}",
            f"durable up to {log.watermark} (by {log.watermark_source})",
            f"dispatch from {self.scan.dispatched}",
        ]
        out += [f"damaged: {hole.begin}..{hole.end} ({hole.reason})" for hole in log.damage]
        if log.lost_end > log.end:
            out.append(f"lost: {log.end}..{log.lost_end}")
        return (
            out
            + [f"warning: {text}" for text in self.scan.warnings]
            + [str(action) for action in self.actions]
        )
