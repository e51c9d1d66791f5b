"""Goal: runs name the same ranges as the ranges that they are made of, in fewer bytes. Method: ranges with gaps,
holes, several stores."""

from __future__ import annotations

import pickle

import pytest

from cystore.derived.reading.snapshot import LogRange, packed_evenly, runs_of
from cystore.engine.files.segments import file_name

pytestmark = pytest.mark.unsanitized  # Python alone

FILE_BYTES = 1000


def part(begin: int, end: int, store: str = "/s", holes: tuple[tuple[int, int], ...] = ()) -> LogRange:
    base = begin - begin % FILE_BYTES
    inside = tuple(hole for hole in holes if hole[0] < end and hole[1] > begin)
    path = f"{store}/commitlog/{file_name(base)}"
    return LogRange(store, path, base, FILE_BYTES, begin, end, inside)


def same(ranges: list[LogRange], count: int) -> None:
    runs = runs_of(ranges)
    assert [one for run in runs for one in run.ranges()] == ranges
    assert len(runs) == count


def test_segments_that_follow_each_other_are_one_run():
    same([part(200, 1000), *(part(base, base + 1000) for base in range(1000, 90_000, 1000))], 1)
    same([part(200, 1000), part(1000, 1700)], 1)
    same([part(1234, 1300)], 1)
    same([], 0)


def test_gaps_and_other_stores_are_other_runs():
    same([part(0, 1000), part(2000, 3000), part(3000, 3500)], 2)
    same([part(100, 200), part(300, 400)], 2)
    same([part(0, 1000), part(1000, 2000, "/t")], 2)
    same([part(0, 1000, "s3://b/s"), part(1000, 2000, "s3://b/s")], 1)


def test_holes_stay_with_their_segments():
    holes = ((100, 150), (900, 1200), (2500, 2600))
    same([part(base, base + 1000, holes=holes) for base in (0, 1000, 2000)], 1)


def test_very_many_segments_are_few_bytes():
    runs = runs_of([part(base, base + 1000) for base in range(0, 10_000_000, 1000)])
    assert len(pickle.dumps(runs)) < 400


def test_packs_are_alike_in_size():
    """Nine segments, the last one not full, in two packs: no third one for the rest, none that is more than half a
    segment too large."""
    ranges = [*(part(base, base + 1000) for base in range(0, 8000, 1000)), part(8000, 8600)]
    for packs in range(1, 12):
        found = packed_evenly(ranges, packs)
        assert [one for pack in found for one in pack] == ranges
        assert len(found) == min(packs, len(ranges))
        assert all(abs(sum(one.size_bytes for one in pack) - 8600 / packs) <= 1000 for pack in found)
    assert packed_evenly([], 3) == []
