"""Goal: in a sound queue the kernel finds the message of a time, in any file of the queue and any segment of the log.
Method: the general search is made to fail, so that only the kernel can answer; a look at all messages is the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from cystore.config import StoreConfig
from cystore.derived.reading.by_time import TimeSearch
from tests.oracle.log import lay_out
from tests.oracle.record import CYSTORE_MAGIC, Record
from tests.support import parts

SMALL = StoreConfig(
    mapped_file_size_commit_log_bytes=8192,
    mapped_file_size_consume_queue_bytes=20 * 64,
    max_hash_slot_num=5,
    max_index_num=400,
)
FOREVER_MS = (1 << 63) - 1


class Unsound(Exception):
    """The general search was asked."""


def opened(root: Path, times: list[int], holes: list[tuple[int, int]] | None = None) -> parts.Parts:
    """A store with one queue, whose messages have these store timestamps."""
    log, _, end = lay_out(
        [
            Record("T", queue_offset=n, store_timestamp_ms=ms, magic=CYSTORE_MAGIC)
            for n, ms in enumerate(times)
        ],
        SMALL.mapped_file_size_commit_log_bytes,
    )
    parts.write_log(root, log)
    store = parts.attach(root, SMALL, minimum=0, wrote=end, holes=holes)
    store.dispatcher.run_to_end()
    return store


def nearest(times: list[int], wanted: int) -> int:
    """The first message of a time; else the nearer one of its neighbours, the earlier one on a tie."""
    later = next((n for n, ms in enumerate(times) if ms >= wanted), None)
    if later is None or later == 0:
        return len(times) - 1 if later is None else 0
    if times[later] == wanted or times[later] - wanted < wanted - times[later - 1]:
        return later
    return later - 1


def bounds(store: parts.Parts, wanted: int) -> tuple[int, int]:
    return tuple(store.reader.offset_by_time("T", 0, wanted, boundary=one) for one in ("lower", "upper"))


def expected_bounds(times: dict[int, int], wanted: int) -> tuple[int, int]:
    """The first message at or after a time, else the end; the last one at or before it, else the first of all."""
    end = max(times) + 1
    later = [n for n, ms in times.items() if ms >= wanted]
    earlier = [n for n, ms in times.items() if ms <= wanted]
    return min(later, default=end), max(earlier, default=0)


@pytest.fixture
def only_the_kernel(monkeypatch):
    def asked(*_: object) -> int:
        raise Unsound

    monkeypatch.setattr(TimeSearch, "_first_from", asked)


@pytest.mark.parametrize(
    "times",
    [
        [7],
        [5, 5, 5],
        [-FOREVER_MS - 1, -FOREVER_MS, 0, FOREVER_MS - 1, FOREVER_MS],
        [10 * (n // 3) for n in range(500)],
    ],
    ids=["one", "equal", "extreme", "many files"],
)
def test_the_kernel_finds_the_message_of_a_time(only_the_kernel, tmp_path, times):
    store = opened(tmp_path, times)
    near = {
        min(max(ms + n, -FOREVER_MS), FOREVER_MS) for ms in times for n in (-6, -5, -4, -1, 0, 1, 4, 5, 6)
    }
    for wanted in sorted({*near, -FOREVER_MS, 0, FOREVER_MS}):
        assert store.reader.offset_by_time("T", 0, wanted) == nearest(times, wanted)
        assert bounds(store, wanted) == expected_bounds(dict(enumerate(times)), wanted)


def test_the_bounds_step_over_a_hole(tmp_path):
    times = [10 * (n // 2) for n in range(40)]
    found = opened(tmp_path / "sound", times).reader.get("T", 0, 6, 1).messages[0]
    hole = found.physical_offset, found.physical_offset + found.size_bytes
    store = opened(tmp_path / "hole", times, [hole])
    left = {n: ms for n, ms in enumerate(times) if n != 6}
    for wanted in range(-1, 202):
        assert bounds(store, wanted) == expected_bounds(left, wanted), wanted


def test_a_hole_is_left_to_the_general_search(only_the_kernel, tmp_path):
    found = opened(tmp_path / "sound", [10 * n for n in range(9)]).reader.get("T", 0, 4, 1).messages[0]
    hole = found.physical_offset, found.physical_offset + found.size_bytes
    store = opened(tmp_path / "hole", [10 * n for n in range(9)], [hole])
    with pytest.raises(Unsound):
        store.reader.offset_by_time("T", 0, 40)


def test_an_empty_queue_gives_its_minimum(only_the_kernel, tmp_path):
    store = opened(tmp_path, [1, 2])
    store.control.add_queue("gone", 0, next=50, dispatched=50, minimum=50)
    for boundary in ("nearest", "lower", "upper"):
        assert store.reader.offset_by_time("gone", 0, 1, boundary=boundary) == 50
