"""Recovery, second part: makes the steps from the findings. Pure.

The order makes a crash in the middle harmless: bytes are copied aside before their place is touched, damaged ranges are
listed before any walk steps over them, files are changed before the files behind them move. After a crash a second run
does the remaining steps.
"""

from __future__ import annotations

from cystore.engine.files.quarantine import copy_name
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.layout import BLANK_SIZE_MIN
from cystore.recovery.actions import (
    Action,
    CutQueue,
    ExtendLogFile,
    FillQueueHoles,
    MendIndex,
    MoveLogFile,
    PutAside,
    RecoveryPlan,
    RemoveFile,
    RemoveLogFile,
    WriteDamagedRanges,
    WriteGivenUp,
    ZeroLog,
)
from cystore.recovery.walk import rules
from cystore.recovery.walk.findings import LogScan, QueueScan, ScanResult


def plan(scan: ScanResult) -> RecoveryPlan:
    """The steps of recovery for the findings of a scan."""
    damaged = _all_damaged_ranges(scan)
    actions: list[Action] = [ExtendLogFile(base, length) for base, length in scan.log.short]
    actions += [PutAside(each.begin, each.end, each.reason) for each in scan.log.damage]
    if scan.log.dirty is not None and not _only_a_blank(scan.log):
        actions.append(PutAside(scan.log.end, scan.log.dirty.end, scan.log.reason))
    if scan.log.damage:
        actions.append(WriteDamagedRanges(damaged))
    if scan.given_up != scan.known_given_up:
        actions.append(WriteGivenUp(scan.given_up))
    if scan.log.dirty is not None:
        actions.append(ZeroLog(scan.log.dirty.begin, scan.log.dirty.end))
    actions += _later_files(scan)
    for queue in scan.queues:
        actions += _queue(queue)
    actions += [RemoveFile(path) for path in scan.index.drop]
    actions += [MendIndex(mend) for mend in scan.index.mend]
    return RecoveryPlan(scan, tuple(actions), damaged)


def _all_damaged_ranges(scan: ScanResult) -> DamagedRanges:
    new = [
        DamagedRange(h.begin, h.end, h.reason, copy_name(h.begin, h.end), h.found_ms) for h in scan.log.damage
    ]
    return scan.known_damage.merged(new)


def _only_a_blank(log: LogScan) -> bool:
    """A blank in the last file is not part of the log, and nothing is lost with it."""
    return log.reason == rules.A_BLANK and log.dirty is not None and log.dirty.end <= log.end + BLANK_SIZE_MIN


def _later_files(scan: ScanResult) -> list[Action]:
    """All-zero files that follow the end without a gap were made ahead of need and stay; files with content are
    moved."""
    log = scan.log
    actions: list[Action] = []
    following = log.end - log.end % log.file_bytes + log.file_bytes
    for file in log.later:
        if not file.zero:
            actions.append(MoveLogFile(file.base))
        elif file.base == following:
            following += log.file_bytes
        else:
            actions.append(RemoveLogFile(file.base))
    return actions


def _queue(queue: QueueScan) -> list[Action]:
    actions: list[Action] = [RemoveFile(path) for path in queue.strays]
    actions += [FillQueueHoles(queue.topic, queue.queue_id, begin, end) for begin, end in queue.holes]
    if queue.dirty:
        actions.append(CutQueue(queue.topic, queue.queue_id, queue.dispatched))
    return actions
