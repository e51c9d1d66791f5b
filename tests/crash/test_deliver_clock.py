"""Goal: no message is early, lost or twice when a clock jumps (I9): that of who puts, of who delivers, or of both.
Method: processes that live with clocks which the test turns; everything is due by the time of the store, which a
clock that jumped does not move at once."""

from __future__ import annotations

import os

import pytest

from tests.support.process import Process
from tests.support.processes.shifted import ShiftedClock
from tests.support.small_stores import SETTINGS

HOUR_MS = 3_600_000
DELAYED = {**SETTINGS, "message_delay_level": "1s 1h"}


@pytest.fixture
def turned(tmp_path):
    """A process with a clock of its own, and the clock."""
    clock = ShiftedClock(tmp_path)
    with Process(clock.environment({**os.environ})) as process:
        process.do(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(tmp_path / "s"),
            settings=DELAYED,
        )
        yield process, clock


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 3 * HOUR_MS])
def test_i9_clock_that_jumped_delivers_nothing_early_and_nothing_late(turned, jump_ms):
    """RocketMQ takes a due time far ahead for wrong and delivers at once."""
    process, clock = turned
    process.do("puts = [store.put('T', b'', delay_level=1) for _ in range(3)]")
    process.do("puts += [store.put('T', b'', delay_level=2)]")
    clock.offset_ms = jump_ms
    clock.passed_ms += 500
    assert process.do("store.deliver()") == 0
    process.do("store.put('T', b'while it is wrong', delay_level=1)")
    clock.passed_ms += 600
    assert process.do("store.deliver()") == 3
    clock.offset_ms = 0
    clock.passed_ms += 1_000
    assert process.do("store.deliver()") == 1
    clock.passed_ms += HOUR_MS
    assert process.do("store.deliver()") == 1
    check(process, 5)


def test_i9_jump_that_is_believed_loses_nothing(turned):
    """An operator says so, once in each direction."""
    process, clock = turned
    process.do("store.put('T', b'', delay_level=1)")
    clock.offset_ms = 3 * HOUR_MS
    process.do("store.believe_clock()")
    assert process.do("store.deliver()") == 1
    process.do("store.put('T', b'', delay_level=1)")
    clock.offset_ms = 0
    process.do("store.believe_clock(); store.put('T', b'', delay_level=2)")
    assert process.do("store.deliver()") == 0
    clock.passed_ms += 1_100
    assert process.do("store.deliver()") == 1
    process.do("store.close(); store = cystore.open(path, **settings)")
    clock.passed_ms += HOUR_MS
    assert process.do("store.deliver()") == 1
    process.do("count = len(store.get('T', 0, 0).messages)")
    assert process.do("count") == 3


def check(process, count):
    process.do(
        "found = store.get('T', 0, 0).messages\n"
        "source = [store.read(int(m.properties['DELAY_SOURCE'].split(':')[2])) for m in found]\n"
        "delay = {'1': 1000, '2': 3600000}\n"
        "late = [m.store_timestamp_ms - s.store_timestamp_ms - delay[s.properties['DELAY']] for m, s in "
        "zip(found, source)]"
    )
    assert process.do("len({s.physical_offset for s in source})") == process.do("len(found)") == count
    assert min(process.do("late")) >= 0
    assert process.do("store.deliver()") == 0
