"""The data of recovery: findings, decisions and reports. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up import GivenUp
from cystore.layout import CONSTANTS

INDEX_HEADER_BYTES = CONSTANTS["INDEX_HEADER_BYTES"][0]
INDEX_SLOT_BYTES = CONSTANTS["INDEX_SLOT_BYTES"][0]


class QueueState(NamedTuple):
    """A consume queue after recovery: entries below `dispatched` exist and are right, `minimum` is the lowest readable
    one, the next message gets the offset `next`."""

    topic: str
    queue_id: int
    dispatched: int
    minimum: int
    next: int


@dataclass(frozen=True)
class Damage:
    """A damaged range of a stored file. `kind`: record, consume_queue or index.

    `begin` and `end` are physical offsets for records and for the index (of the records whose keys are wrong or missing), and
    positions in the file for consume queues.
    """

    kind: str
    path: Path
    begin: int
    end: int
    reason: str


@dataclass(frozen=True)
class DirtyRange:
    """Bytes that are not zero where the file should be empty: [begin, end) of one commit log file, physical offsets."""

    begin: int
    end: int


@dataclass(frozen=True)
class LaterFile:
    """A commit log file wholly behind the log's end."""

    base: int
    zero: bool


@dataclass(frozen=True, slots=True)
class QueueScan:
    """The findings about one consume queue.

    `holes` are queue offsets [begin, end) of damaged records; their entries must become hole entries. `dirty`: there
    are bytes behind `dispatched`. `strays` are files that cannot belong to the queue or follow a missing one. `next` is
    the offset of the next message: the highest that any witness knows.
    """

    topic: str
    queue_id: int
    dispatched: int
    minimum: int
    next: int
    file_bytes: int
    bases: tuple[int, ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    dirty: bool = False
    strays: tuple[Path, ...] = ()


@dataclass(frozen=True)
class IndexMend:
    """An index file whose entries from number `keep` on cannot be trusted, with its slots mended accordingly.

    `checked`: the kept entries form chains, so they alone determine its slots.
    """

    path: Path
    slots: int
    keep: int
    end_timestamp: int
    end_physical_offset: int
    checked: bool = False

    @property
    def entries_at(self) -> int:
        """Position of entry 0 in the file."""
        return INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * self.slots


@dataclass(frozen=True)
class IndexScan:
    """The work on the index, after which it holds exactly the keys of the records below `through`."""

    through: int
    drop: tuple[Path, ...] = ()
    mend: tuple[IndexMend, ...] = ()


@dataclass(frozen=True)
class LogScan:
    """The end of the log with its reason, and the bytes around it.

    `reason` describes the bytes at `end`. Below `watermark` the log is known to be durable (`watermark_source`:
    checkpoint, consume queues, timestamps). `lost_end` > `end` if durable records below it had to be given up.
    """

    begin: int
    start: int
    end: int
    reason: str
    watermark: int
    watermark_source: str
    damage: tuple[DamagedRange, ...]
    lost_end: int
    last_record: int
    last_checksum: int
    last_store_timestamp_ms: int
    records: int
    dirty: DirtyRange | None
    later: tuple[LaterFile, ...]
    short: tuple[tuple[int, int], ...]
    file_bytes: int


@dataclass(frozen=True)
class ScanResult:
    """Everything that the plan is made from. Nothing was changed to get it."""

    log: LogScan
    queues: tuple[QueueScan, ...]
    index: IndexScan
    known_holes: DamagedRanges
    known_given_up: GivenUp
    given_up: GivenUp
    dispatched: int
    queue_file_bytes: int
    offsets_saved: bool = False
    warnings: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------ the plan


@dataclass(frozen=True)
class PutAside:
    """Copy [begin, end) of the log to quarantine/."""

    begin: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"copy log bytes {self.begin}..{self.end} to quarantine/ ({self.why})"


@dataclass(frozen=True)
class ZeroLog:
    """Make [begin, end) of the log zero."""

    begin: int
    end: int

    def __str__(self) -> str:
        return f"zero log bytes {self.begin}..{self.end}"


@dataclass(frozen=True)
class MoveLogFile:
    """Rename a commit log file into quarantine/."""

    base: int

    def __str__(self) -> str:
        return f"move commit log file {self.base} to quarantine/"


@dataclass(frozen=True)
class RemoveLogFile:
    """Unlink a commit log file that is all zero and follows nothing."""

    base: int

    def __str__(self) -> str:
        return f"remove empty commit log file {self.base}"


@dataclass(frozen=True)
class RemoveFile:
    """Unlinks a derived file."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True)
class ExtendLogFile:
    """Give a commit log file that was cut short its length back."""

    base: int
    length: int

    def __str__(self) -> str:
        return f"extend commit log file {self.base} from {self.length} bytes"


@dataclass(frozen=True)
class CutQueue:
    """Leave nothing in a consume queue behind queue offset `end`."""

    topic: str
    queue_id: int
    end: int

    def __str__(self) -> str:
        return f"cut consume queue {self.topic}/{self.queue_id} at queue offset {self.end}"


@dataclass(frozen=True)
class FillQueueHoles:
    """Turn queue offsets [begin, end) into hole entries."""

    topic: str
    queue_id: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"mark queue offsets {self.begin}..{self.end} of {self.topic}/{self.queue_id} as lost"


@dataclass(frozen=True)
class MendIndex:
    """Keep the first entries of an index file and lead its slots to them."""

    mend: IndexMend

    def __str__(self) -> str:
        return f"keep {self.mend.keep - 1} entries of index file {self.mend.path}"


@dataclass(frozen=True)
class WriteHoles:
    """Write quarantine/holes.json."""

    holes: DamagedRanges

    def __str__(self) -> str:
        return f"write {len(self.holes)} holes to quarantine/holes.json"


@dataclass(frozen=True)
class WriteGivenUp:
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
    | WriteHoles
    | WriteGivenUp
)


@dataclass(frozen=True)
class RecoveryPlan:
    """The steps of recovery, in this order; printable. `holes` are those of the log afterwards."""

    scan: ScanResult
    actions: tuple[Action, ...]
    holes: DamagedRanges

    def lines(self) -> list[str]:
        """The plan for people, one thing a line."""
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


# ---------------------------------------------------------------------------------------------- the outcome


@dataclass(frozen=True)
class RecoveryReport:
    """The findings and actions of recovery. Ranges are physical offsets."""

    abnormal: bool
    begin: int
    end: int
    start: int
    reason: str
    watermark: int
    watermark_source: str
    records: int
    dispatch_from: int
    queues: int
    queues_cut: int
    holes: tuple[tuple[int, int], ...]
    new_holes: tuple[tuple[int, int], ...]
    cut: tuple[int, int] | None
    lost: tuple[int, int] | None
    put_aside: tuple[str, ...]
    warnings: tuple[str, ...]
    duration_s: float

    @property
    def clean(self) -> bool:
        """Whether nothing was damaged, cut or lost."""
        return not (self.new_holes or self.cut or self.lost or self.warnings)

    def __str__(self) -> str:
        parts = [
            f"log {self.begin}..{self.end}, {self.records} records checked from {self.start} in {self.duration_s:.2f} s"
        ]
        parts += [f"damaged range {begin}..{end} stepped over" for begin, end in self.new_holes]
        if self.cut:
            parts.append(f"cut {self.cut[0]}..{self.cut[1]} ({self.reason})")
        if self.lost:
            parts.append(f"LOST {self.lost[0]}..{self.lost[1]}")
        if self.put_aside:
            parts.append(f"put aside: {', '.join(self.put_aside)}")
        return "; ".join([*parts, *self.warnings])


@dataclass(frozen=True)
class RecoveredState:
    """The state after recovery, from which the control block is filled.

    Everything below `dispatched` is in the consume queues and the index; from `watermark` on the log has to be made
    durable again. `last_record` is -1 if the walk met no record. If nothing may be written to disk, three lists take
    the place of changes: `index_drop` are the index files to ignore, `index_pieces` the bytes to write into private
    mappings of the others, and `queue_holes` the (topic, queue id, begin, end) of entries to turn into holes there.
    """

    min_physical_offset: int
    wrote: int
    dispatched: int
    last_store_timestamp_ms: int
    last_record: int
    last_record_checksum: int
    watermark: int
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    queues: list[QueueState]
    holes: DamagedRanges
    given_up: GivenUp
    report: RecoveryReport
    offsets_saved: bool = False  # config/queueOffset.json already has the same offsets
    index_drop: tuple[Path, ...] = field(default=())
    index_pieces: dict[Path, list[tuple[int, bytes]]] = field(default_factory=dict)
    queue_holes: tuple[tuple[str, int, int, int], ...] = ()
