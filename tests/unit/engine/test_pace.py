"""Goal: large pages only where appends fill them before a sync. Method: the bytes that this process made dirty, as
Linux counts them; and the judgement beside appends, syncs and times that a test chooses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import cystore
from cystore.engine.files import pace
from tests.support.small_stores import open_small

pytestmark = [pytest.mark.disk, pytest.mark.unsanitized]  # about pages and files ahead, which no kernel makes

MIB = 1024 * 1024


def dirtied() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["write_bytes"])


def appended(store: cystore.MessageStore, count: int, **how: str) -> None:
    for number in range(count):
        store.put("T", b"x" * 1000, **how)
        if number % 10 == 0:
            store._parts.allocator.run_once()


def test_a_sync_writes_little_more_than_was_appended(tmp_path):
    """Seen: the pages ahead were up to 2 MiB large, and the sync of one record wrote 1.5 MiB."""
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=64 * MIB, populate_ahead_bytes=16 * MIB
    ) as store:
        appended(store, 3000)
        appended(store, 100, flush="sync")  # writes empty pages ahead
        before = dirtied()
        appended(store, 100, flush="sync")
        assert dirtied() - before < 100 * 16 * 1024


class Looks:
    """A pace with a control block and a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.control, self.now_s = SimpleNamespace(log_end=0, flush_seq=0xFFFFFFFE), 0.0
        monkeypatch.setattr(pace, "monotonic_s", lambda: self.now_s)
        self.pace = pace.Pace(self.control)

    def after(self, seconds: float, appended: int, syncs: int) -> bool:
        self.now_s += seconds
        self.control.log_end += appended
        self.control.flush_seq = (self.control.flush_seq + syncs) & 0xFFFFFFFF
        self.pace.look()
        assert self.pace.syncs == syncs
        return self.pace.fills_large_pages


def test_fast_appends_with_few_syncs_fill_large_pages(monkeypatch):
    looks = Looks(monkeypatch)
    assert not looks.after(0.1, pace.FAST_BYTES - 1, 0)
    assert looks.after(0.1, 1, 4)
    assert looks.after(0.1, pace.FAST_BYTES, 1)
    assert not looks.after(0.1, pace.FAST_BYTES, 5)
    assert looks.after(0.1, pace.FAST_BYTES, 0)


def test_syncs_of_all_looks_count(monkeypatch):
    looks = Looks(monkeypatch)
    for _ in range(3):
        assert not looks.after(0.1, pace.FAST_BYTES // 4, 2)
    assert not looks.after(0.1, pace.FAST_BYTES // 4, 0)
    assert looks.after(0.1, pace.FAST_BYTES, 0)


def test_slow_appends_fill_no_large_page(monkeypatch):
    looks = Looks(monkeypatch)
    assert looks.after(0.1, pace.FAST_BYTES, 0)
    assert looks.after(pace.FAST_S / 2, pace.FAST_BYTES - 1, 0), "not judged anew yet"
    assert not looks.after(pace.FAST_S, 0, 0)
    assert not looks.after(2 * pace.FAST_S, pace.FAST_BYTES, 0)


def test_the_rate_of_fast_appends_falls_slowly(monkeypatch):
    looks = Looks(monkeypatch)
    looks.after(0.5, pace.FAST_BYTES, 0)
    assert looks.pace.bytes_per_s == 2 * pace.FAST_BYTES
    looks.after(0.25, 2 * pace.FAST_BYTES, 9)
    assert looks.pace.bytes_per_s == 8 * pace.FAST_BYTES, "also where puts wait for the disk"
    looks.after(0.5, pace.FAST_BYTES, 0)
    assert looks.pace.bytes_per_s == 4 * pace.FAST_BYTES, "a pause between bursts"
    looks.after(0.0, pace.FAST_BYTES, 0)
    assert looks.pace.bytes_per_s == pace.FAST_BYTES / pace.LEAST_S, "at one moment of the clock"
    looks.after(pace.FAST_S, pace.FAST_BYTES, 0)
    assert looks.pace.bytes_per_s == 0
