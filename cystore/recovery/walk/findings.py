"""The findings about a store's files: damage, and the state of log, queues and index. No behaviour."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.layout import CONSTANTS
from cystore.value_class import value_class

INDEX_HEADER_BYTES = CONSTANTS["INDEX_HEADER_BYTES"][0]
INDEX_SLOT_BYTES = CONSTANTS["INDEX_SLOT_BYTES"][0]


@value_class(frozen=True)
class Damage:
    """A damaged range of a stored file. `kind`: record, consume_queue, index, compacted or manifest.

    `begin` and `end` are physical offsets for records and for the index (of the records whose keys are wrong or
    missing), and positions in the file for consume queues and the compacted file.
    """

    kind: str
    path: Path
    begin: int
    end: int
    reason: str


class DirtyRange(NamedTuple):
    """Bytes that are not zero where the file should be empty: [begin, end) of one commit log file, physical offsets."""

    begin: int
    end: int


class LaterFile(NamedTuple):
    """A commit log file wholly behind the log's end."""

    base: int
    zero: bool


class QueueScan(NamedTuple):
    """The findings about one consume queue.

    `holes` are queue offsets [begin, end) of damaged records; their entries must become hole entries. `dirty`: there
    are bytes behind `dispatched`. `strays` are files that cannot belong to the queue or follow a missing one. `next` is
    the offset of the next message: the highest that any file gives.
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


class IndexMend(NamedTuple):
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


class IndexScan(NamedTuple):
    """The work on the index, after which it holds exactly the keys of the records below `through`."""

    through: int
    drop: tuple[Path, ...] = ()
    mend: tuple[IndexMend, ...] = ()


class LogScan(NamedTuple):
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


@value_class(frozen=True)
class ScanResult:
    """Everything that the plan is made from. Nothing was changed to get it."""

    log: LogScan
    queues: tuple[QueueScan, ...]
    index: IndexScan
    known_damage: DamagedRanges
    known_given_up: GivenUp
    given_up: GivenUp
    dispatched: int
    queue_file_bytes: int
    offsets_saved: bool = False
    warnings: tuple[str, ...] = ()
