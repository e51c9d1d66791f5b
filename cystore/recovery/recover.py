"""Recovery of a whole store: `recover` runs the scan, the plan and its changes, and reports what it found.

Source: DefaultMessageStore.load and recover, CommitLog.recoverNormally and recoverAbnormally, ConsumeQueue.recover,
IndexService.load of RocketMQ 4.9.3; docs/recovery.md has the additions.
"""

from __future__ import annotations

from pathlib import Path

from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.files.segments import Mode
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.recovery.actions import CutQueue, PutAside, RecoveryPlan
from cystore.recovery.apply import Apply, Pieces, mended
from cystore.recovery.outcome import QueueState, RecoveredState, RecoveryReport
from cystore.recovery.plan import plan
from cystore.recovery.scan import Progress, scan
from cystore.recovery.walk.rules import A_BLANK


def recover(
    root: Path,
    config: StoreConfig,
    mode: Mode,
    *,
    abnormal: bool,
    progress: Progress | None = None,
    with_index: bool = True,
    elsewhere: Path | None = None,
) -> RecoveredState:
    """Makes the files of the store at `root` agree with each other. Returns the state for the control block.

    `abnormal`: the store was not closed cleanly. With Mode.PRIVATE no byte on disk changes: the state is that of the
    store after recovery. Without `with_index` the state of the index is left out. `elsewhere`: a folder
    for copies of damaged bytes instead of quarantine/.

    Raises StoreFormatError, StoreIOError, StoreFullError, StorePermissionError; a failed recovery has destroyed
    nothing and can be run again.
    """
    begun = monotonic_s()
    chosen = plan(scan(root, config, abnormal=abnormal, progress=progress, with_index=with_index))
    if mode is Mode.WRITE:
        work = Apply(root, chosen, elsewhere)
        damaged, put_aside = work.run(), tuple(work.put_aside)
        pieces = {}
    else:
        damaged, put_aside = chosen.damaged_ranges, ()
        pieces = {mend.path: mended(mend) for mend in chosen.scan.index.mend}
    report = _report(chosen, damaged, put_aside, abnormal=abnormal, duration_s=monotonic_s() - begun)
    return _state(chosen, damaged, report, pieces)


def _report(
    chosen: RecoveryPlan,
    damaged: DamagedRanges,
    put_aside: tuple[str, ...],
    *,
    abnormal: bool,
    duration_s: float,
) -> RecoveryReport:
    scan_, log = chosen.scan, chosen.scan.log
    moved = [file.base + log.file_bytes for file in log.later if not file.zero]
    dirty_end = max([*moved, log.dirty.end if log.dirty else log.end])
    only_blank = (
        log.reason == A_BLANK and not put_aside and not any(isinstance(a, PutAside) for a in chosen.actions)
    )
    return RecoveryReport(
        abnormal=abnormal,
        begin=log.begin,
        end=log.end,
        start=log.start,
        reason=log.reason,
        watermark=log.watermark,
        watermark_source=log.watermark_source,
        records=log.records,
        dispatch_from=scan_.dispatched,
        queues=len(scan_.queues),
        queues_cut=sum(isinstance(action, CutQueue) for action in chosen.actions),
        holes=tuple(damaged.ranges()),
        new_holes=tuple((hole.begin, hole.end) for hole in log.damage),
        cut=(log.end, dirty_end) if dirty_end > log.end and not only_blank else None,
        lost=(log.end, log.lost_end) if log.lost_end > log.end else None,
        put_aside=put_aside,
        warnings=scan_.warnings,
        duration_s=duration_s,
    )


def _state(
    chosen: RecoveryPlan, damaged: DamagedRanges, report: RecoveryReport, pieces: dict[Path, Pieces]
) -> RecoveredState:
    scan_, log = chosen.scan, chosen.scan.log
    return RecoveredState(
        min_physical_offset=log.begin,
        wrote=log.end,
        dispatched=scan_.dispatched,
        last_store_timestamp_ms=log.last_store_timestamp_ms,
        last_record=log.last_record,
        last_record_checksum=log.last_checksum,
        watermark=log.watermark,
        commit_log_file_bytes=log.file_bytes,
        consume_queue_file_bytes=scan_.queue_file_bytes,
        queues=[
            QueueState(q.topic, q.queue_id, q.dispatched, q.minimum, q.next)
            for q in scan_.queues
            if q.bases or q.next
        ],
        damaged_ranges=damaged,
        given_up=scan_.given_up,
        report=report,
        offsets_saved=scan_.offsets_saved,
        index_drop=scan_.index.drop,
        index_pieces=pieces,
        queue_holes=tuple((q.topic, q.queue_id, *hole) for q in scan_.queues for hole in q.holes),
    )
