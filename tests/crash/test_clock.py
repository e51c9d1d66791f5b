"""Goal: a wall clock that jumps stamps, delivers, rolls and deletes nothing; after it is set right everything
continues (I7, I9). Method: processes that live with a wall clock and a CLOCK_BOOTTIME which the test turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cystore
from cystore.engine.files.checkpoint import FILE_NAME, read_checkpoint
from tests.support.process import Process
from tests.support.processes.shifted import ShiftedClock
from tests.support.small_stores import SETTINGS

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
CLOCK_BOOT_AT = 56
KEPT = {**SETTINGS, "message_delay_level": "1s 1h", "file_reserved_time_h": 72, "roll_interval_h": 24}
OPEN = """
import cystore
store = cystore.open(path, **settings)
def fill(count=200):
    for n in range(count):
        store.put('T', b'x' * 300, keys=(f'k{n}',))
    store.dispatch()
    store.flush()
def stamp():
    return store.put('T', b'').store_timestamp_ms
def look():
    store._parts.clock.look()
"""


class Scene:
    """A store, a process with a clock of its own, and that clock."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clock = folder / "s", ShiftedClock(folder)
        self._processes: list[Process] = []
        self.process = self.another()

    def another(self) -> Process:
        """One more process that has the store open."""
        process = Process(self.clock.environment({**os.environ}))
        self._processes.append(process)
        process.do(OPEN, path=str(self.path), settings=KEPT)
        return process

    def do(self, source: str):
        return self.process.do(source)

    def stand(self, ms: int) -> None:
        """The clock stands so long as it is, and somebody looks at it from time to time."""
        for _ in range(3):
            self.do("look()")
            self.clock.passed_ms += ms // 3 + 1
        self.do("look()")

    def reopen(self) -> None:
        self.do("store.close()")
        self.process = self.another()

    def forget_boot(self) -> None:
        """As after another boot of the host: nobody knows what the clock said before."""
        with open(self.path / FILE_NAME, "r+b") as file:
            file.seek(CLOCK_BOOT_AT)
            file.write(bytes(8))

    def end(self) -> None:
        for process in self._processes:
            process.__exit__(None, None, None)


@pytest.fixture
def scene(tmp_path):
    scene = Scene(tmp_path)
    yield scene
    scene.end()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS, HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("who", ["the same process", "another process", "the next process"])
def test_a_put_while_the_clock_is_wrong_has_the_time_before(scene, jump_ms, who):
    """Seen: stamped a year ahead, after which nothing expired, rolled or was delivered for a year."""
    first = scene.do("stamp()")
    scene.clock.offset_ms = jump_ms
    if who == "another process":
        scene.process = scene.another()
    elif who == "the next process":
        scene.reopen()
    assert 0 <= scene.do("stamp()") - first < MINUTE_MS
    assert (
        scene.do("store.put_many([cystore.Message(topic='T', body=b'')])[0].store_timestamp_ms") - first
        < MINUTE_MS
    )
    stats = scene.do("store.stats()")
    assert abs(stats["clock_ahead_ms"] - jump_ms) < MINUTE_MS
    assert stats["clock_jumps"] == (who != "the next process"), (
        "counted once, by the process that saw it first"
    )
    scene.clock.offset_ms = 0
    assert 0 <= scene.do("stamp()") - first < MINUTE_MS
    assert scene.do("store.stats()")["clock_ahead_ms"] == 0
    stamps = scene.do("[m.store_timestamp_ms for m in store.scan()]")
    assert stamps == sorted(stamps)


@pytest.mark.parametrize(("jump_ms", "stands_ms"), [(YEAR_MS, 300_000), (-YEAR_MS, 30_000)])
def test_a_jump_is_believed_when_it_has_stood_in_several_looks(scene, jump_ms, stands_ms):
    first = scene.do("stamp()")
    scene.clock.offset_ms = jump_ms
    scene.stand(stands_ms - 10_000)
    assert abs(scene.do("stamp()") - first - stands_ms) < MINUTE_MS
    scene.stand(20_000)
    assert abs(scene.do("stamp()") - first - jump_ms - stands_ms) < MINUTE_MS
    assert scene.do("store.stats()")["clock_ahead_ms"] == 0


def test_one_look_after_a_long_time_is_not_enough(scene):
    first = scene.do("stamp()")
    scene.clock.offset_ms = YEAR_MS
    scene.clock.passed_ms += HOUR_MS
    assert abs(scene.do("stamp()") - first - HOUR_MS) < MINUTE_MS


def test_nothing_is_deleted_by_a_clock_that_jumped(scene):
    """Seen: the jump itself deleted the whole history."""
    scene.do("fill()")
    scene.clock.offset_ms = YEAR_MS
    assert scene.do("store.clean().segments") == 0
    assert scene.do("store.clean_due().done") == 0
    scene.clock.offset_ms = 0
    assert scene.do("store.clean().segments") == 0
    scene.clock.passed_ms = 73 * HOUR_MS
    assert scene.do("store.clean().segments") > 2


def test_nothing_is_deleted_by_the_first_look_at_a_clock(scene):
    """The host was started with a clock a year ahead, and nobody knows what it said before."""
    scene.do("fill()")
    scene.do("store.close()")
    scene.forget_boot()
    scene.clock.offset_ms = YEAR_MS
    scene.process = scene.another()
    assert scene.do("store.clean().segments") == 0
    scene.stand(290_000)
    assert scene.do("store.clean().segments") == 0
    scene.stand(20_000)
    assert scene.do("store.clean().segments") > 2


def test_an_operator_is_believed_at_once_by_every_process(scene):
    scene.do("fill()")
    other = scene.another()
    scene.clock.offset_ms = YEAR_MS
    before = scene.do("stamp()")
    scene.do("store.believe_clock()")
    assert abs(other.do("stamp()") - before - YEAR_MS) < MINUTE_MS
    assert other.do("store.clean().segments") > 2
    other.do("store.close()")
    scene.reopen()
    assert abs(scene.do("stamp()") - before - YEAR_MS) < MINUTE_MS


def test_the_command_shows_the_clock_and_believes_it(scene):
    before = scene.do("stamp()")
    scene.clock.offset_ms = YEAR_MS
    run = "import subprocess, sys; "
    run += "run = lambda *a: subprocess.run([sys.executable, '-m', 'cystore', *a], text=True, capture_output=True)"
    scene.do(run)
    shown = scene.do(f"(lambda d: (d.returncode, d.stdout))(run('clock', {str(scene.path)!r}))")
    assert shown[0] == 1 and "(not believed)" in shown[1]
    assert "not believed" in scene.do(f"run('info', {str(scene.path)!r}).stdout")
    assert scene.do(f"run('clock', {str(scene.path)!r}, '--believe').returncode") == 0
    assert abs(scene.do("stamp()") - before - YEAR_MS) < MINUTE_MS


# ------------------------------------------------------------------- a wrong clock that was believed, and is set right


@pytest.fixture
def believed(scene):
    """Records and a delayed message of a year ahead; then the clock is set right, half a minute ago."""
    scene.do("fill(20)")
    scene.clock.offset_ms = YEAR_MS
    scene.do("store.believe_clock()")
    scene.do("fill(100); store.put('T', b'waits', delay_level=1); store.dispatch(); store.flush()")
    scene.clock.offset_ms = 0
    scene.stand(31_000)
    return scene


def test_stamps_and_delays_go_on_within_a_minute(believed):
    stamps = believed.do("[m.store_timestamp_ms for m in store.scan()]")
    assert (
        abs(believed.do("stamp()") - stamps[0]) < 2 * MINUTE_MS < YEAR_MS - MINUTE_MS < stamps[-1] - stamps[0]
    )
    believed.do("store.put('T', b'new', delay_level=1)")
    assert believed.do("store.deliver()") == 0, "never early"
    believed.clock.passed_ms += 1_001
    believed.do("store.deliver(); store.deliver()")
    bodies = believed.do("[bytes(m.body).decode() for m in store.scan() if m.topic == 'T' and m.delay_level]")
    assert sorted(bodies) == ["new", "waits"]


def test_segments_expire_and_roll_by_the_right_clock(believed):
    """The records of the wrong clock are as old as the next right one."""
    assert believed.do("store._attached().cleaner._roller.run_once()") is True
    believed.do("fill(50)")
    believed.clock.passed_ms += 71 * HOUR_MS
    assert believed.do("store.clean().segments") == 0
    believed.clock.passed_ms += 2 * HOUR_MS
    assert believed.do("store.clean().segments") == 4, "the message that waits is carried forward"
    believed.do("store.deliver()")
    believed.clock.passed_ms += 1_001
    believed.do("store.deliver()")
    assert believed.do("store.topics()['T'][0].min_offset") > 0


def test_recovery_begins_at_the_watermark_all_the_same(believed):
    """Seen: the checkpoint kept the highest timestamp, so its watermark was taken for stale, and everything was
    walked."""
    newest = believed.do("stamp()")
    believed.do("store.flush()")
    believed.process.kill()
    fields = read_checkpoint(believed.path)
    assert fields.physic_timestamp == newest
    count = 122
    with cystore.open(believed.path, **KEPT) as store:
        assert store.recovery.abnormal
        assert str(fields.watermark) in str(store.recovery)
        assert len([m for m in store.scan() if m.topic == "T"]) == count - 1
        assert len(store.query("T", "k99", 5)) == 1
        assert store.offset_by_time("T", 0, newest) >= 0


def test_records_of_the_wrong_clock_are_read_and_found(believed):
    assert believed.do("len(store.get('T', 0, 20, 32).messages)") == 32
    assert believed.do("len(store.query('T', 'k99'))") == 1
    now = believed.do("stamp()")
    assert believed.do(f"len(store.query('T', 'k5', begin_ms={now - HOUR_MS}, end_ms={now}))") == 1


def test_a_put_that_stands_still_behind_its_look_at_the_clock_is_not_stamped_before_others(
    in_memory, build_environment
):
    """A put looks at the clock before it takes the lock. Other processes append meanwhile, for longer than a clock may
    jump: then no timestamp is held back."""
    path, settings = in_memory / "s", {**SETTINGS, "max_clock_jump_s": 1}
    with cystore.open(path, **settings) as store, Process(build_environment("failpoints")) as stopped:
        stopped.do(
            "import os, time, cystore; store = cystore.open(path, **settings)\n"
            "end = time.monotonic() + 0.1\n"
            "while time.monotonic() < end: store.put('T', b'')\n"  # then it knows how fast the counter runs
            "os.environ['CYSTORE_FAILPOINT'] = 'append.looked:2:stop'",
            path=str(path),
            settings=settings,
        )
        stopped.send("(store.put('T', b''), store.put('T', b'').store_timestamp_ms)[1]")
        stopped.wait_stopped()
        # Few appends meanwhile: at the end of a file the put would look again.
        assert not store.wait("silent", 0, 0, timeout_s=1.1)
        last = store.put("T", b"").store_timestamp_ms
        stopped.go_on()
        assert stopped.answer() >= last
        stopped.do("store.close()")
