"""Goal: the plan follows from the scan alone, in an order that a crash cannot hurt. Method: scans made by hand, no
disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.recovery.actions import (
    CutQueue,
    ExtendLogFile,
    FillQueueHoles,
    MoveLogFile,
    PutAside,
    RemoveFile,
    RemoveLogFile,
    WriteDamagedRanges,
    ZeroLog,
)
from cystore.recovery.plan import plan
from cystore.recovery.walk import rules
from cystore.recovery.walk.findings import DirtyRange, IndexScan, LaterFile, LogScan, QueueScan, ScanResult

pytestmark = pytest.mark.unsanitized  # decides and reads nothing

LOG = LogScan(
    begin=0,
    start=0,
    end=1500,
    reason="zero",
    watermark=1500,
    watermark_source="checkpoint",
    damage=(),
    lost_end=1500,
    last_record=1400,
    last_checksum=7,
    last_store_timestamp_ms=1,
    records=10,
    dirty=None,
    later=(),
    short=(),
    file_bytes=1000,
)
SOUND = ScanResult(LOG, (), IndexScan(1500), DamagedRanges(), GivenUp(), GivenUp(), 1500, 6000)


def actions(queues=(), index=None, **log):
    scan = replace(SOUND, log=LOG._replace(**log), queues=tuple(queues), index=index or SOUND.index)
    return list(plan(scan).actions)


def test_nothing_is_done_to_a_sound_store():
    assert actions() == []
    assert actions(later=(LaterFile(2000, True), LaterFile(3000, True))) == []


def test_bytes_are_put_aside_before_they_are_zeroed():
    assert actions(dirty=DirtyRange(1510, 1600), reason="bad checksum") == [
        PutAside(1500, 1600, "bad checksum"),
        ZeroLog(1510, 1600),
    ]


def test_a_blank_is_zeroed_and_not_kept():
    assert actions(dirty=DirtyRange(1502, 1508), reason=rules.A_BLANK) == [ZeroLog(1502, 1508)]
    assert actions(dirty=DirtyRange(1502, 1509), reason=rules.A_BLANK) == [
        PutAside(1500, 1509, rules.A_BLANK),
        ZeroLog(1502, 1509),
    ]


def test_later_files_are_moved_removed_or_left():
    later = (LaterFile(2000, True), LaterFile(3000, False), LaterFile(4000, True))
    assert actions(later=later) == [MoveLogFile(3000), RemoveLogFile(4000)]


def test_holes_are_copied_then_listed_then_the_tail_is_cut():
    done = actions(
        damage=(DamagedRange(100, 200, "zero"),),
        dirty=DirtyRange(1500, 1501),
        reason="short",
        short=((0, 900),),
    )
    assert [type(a) for a in done] == [ExtendLogFile, PutAside, PutAside, WriteDamagedRanges, ZeroLog]
    assert done[3].damaged_ranges.ranges() == [(100, 200)]


def test_known_holes_stay_on_the_list():
    known = replace(
        SOUND,
        known_damage=DamagedRanges([DamagedRange(10, 20)]),
        log=LOG._replace(damage=(DamagedRange(100, 200, "zero"),)),
    )
    assert plan(known).damaged_ranges.ranges() == [(10, 20), (100, 200)]


def test_queues_and_index_come_after_the_log():
    stray, old = Path("stray"), Path("old")
    queue = QueueScan("T", 3, 9, 0, 9, 200, (0,), holes=((4, 6),), dirty=True, strays=(stray,))
    done = actions([queue], IndexScan(0, (old,)), dirty=DirtyRange(1500, 1600), reason="x")
    assert [type(a) for a in done[:2]] == [PutAside, ZeroLog]
    assert done[2:] == [RemoveFile(stray), FillQueueHoles("T", 3, 4, 6), CutQueue("T", 3, 9), RemoveFile(old)]


def test_the_plan_reads_as_text():
    scan = replace(
        SOUND,
        log=LOG._replace(damage=(DamagedRange(100, 200, "bad checksum"),), lost_end=1600),
        warnings=("odd",),
    )
    text = "\n".join(plan(scan).lines())
    for part in (
        "0..1500",
        "damaged: 100..200 (bad checksum)",
        "lost: 1500..1600",
        "warning: odd",
        "copy log bytes 100..200",
    ):
        assert part in text
