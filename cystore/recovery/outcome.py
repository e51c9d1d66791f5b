"""The outcome of recovery: a report for people, and the state from which the control block is built."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.value_class import value_class


class QueueState(NamedTuple):
    """A consume queue after recovery: entries below `dispatched` exist and are right, `minimum` is the lowest readable
    one, the next message gets the offset `next`."""

    topic: str
    queue_id: int
    dispatched: int
    minimum: int
    next: int


class RecoveryReport(NamedTuple):
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


@value_class(frozen=True)
class RecoveredState:
    """The state after recovery, from which the control block is filled.

    Everything below `dispatched` is in the consume queues and the index; the log from `watermark` on has to be made
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
    damaged_ranges: DamagedRanges
    given_up: GivenUp
    report: RecoveryReport
    offsets_saved: bool = False  # config/queueOffset.json already has the same offsets
    index_drop: tuple[Path, ...] = field(default=())
    index_pieces: dict[Path, list[tuple[int, bytes]]] = field(default_factory=dict)
    queue_holes: tuple[tuple[str, int, int, int], ...] = ()
