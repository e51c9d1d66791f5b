"""Clock: the wall clock jumps by an hour or a day, forwards and back, under live writers and between lives.

The store does not believe any of it: it continues with the time that it began with, and CLOCK_BOOTTIME. So store
timestamps never go back in the log's order, every message is found by key in its time range and by `offset_by_time`,
and recovery, which looks at timestamps too, loses nothing. The checker's own clock does not jump: it is one more life
with another time.
"""

from __future__ import annotations

import bisect
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cystore
from tests.crash.matrix import Fault, Run
from tests.support.aftermath import after_check
from tests.support.checks import check, check_closed, everything
from tests.support.processes.fork_server import ForkServer, environment, no_compiler
from tests.support.processes.forked_writers import BATCH
from tests.support.processes.shifted import ShiftedClock
from tests.support.small_stores import SETTINGS

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
JUMPS_MS = (HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS)
JUMPS_A_CASE = 5
WRITERS = 3
SAME_TIME_S = 0.003
STEPS = 1_000_000
BELIEVED_MS = 300_000  # max_clock_jump_s
SOME = 150  # messages, and times, that a check asks for
SMALL = SETTINGS | {"max_index_num": 60}  # index files are named by the clock: there must be several


def check_clock(fork_server: ForkServer, clock: ShiftedClock) -> None:
    """The fork server has the clock that jumps, else this row would prove nothing."""
    for offset_ms in (DAY_MS, -DAY_MS, 0):
        clock.offset_ms = offset_ms
        off_ms = fork_server.ask("__import__('time').time_ns() // 1000000") - time.time_ns() // 1_000_000
        assert abs(off_ms - offset_ms) < 60_000, (off_ms, offset_ms)


def nearest(times: Sequence[int], asked: int) -> int:
    """The promise of `offset_by_time`, in the plain way: queue offsets are the indexes of `times`."""
    later = bisect.bisect_left(times, asked)
    if later == len(times):
        return later - 1
    if later == 0 or times[later] == asked:
        return later
    return later if times[later] - asked < asked - times[later - 1] else later - 1


def check_times(store: cystore.MessageStore, rng: random.Random) -> None:
    stamped = [m.store_timestamp_ms for m in store.scan()]
    assert stamped == sorted(stamped), "a store timestamp went back"
    queues = everything(store)
    messages = [m for found in queues.values() for m in found if m.keys]
    for m in rng.sample(messages, min(SOME, len(messages))):
        at = m.store_timestamp_ms
        within = store.query(m.topic, m.keys[0], begin_ms=at, end_ms=at)
        assert m.physical_offset in {found.physical_offset for found in within}, (m.keys, at)
        for begin, end in ((0, at - 1), (at + 1, None)):
            outside = store.query(m.topic, m.keys[0], begin_ms=begin, end_ms=end)
            assert m.physical_offset not in {found.physical_offset for found in outside}, (m.keys, at)
    for (topic, queue_id), found in queues.items():
        times = [m.store_timestamp_ms for m in found]
        asked = {t + d for t in rng.sample(times, min(5, len(times))) for d in (-HOUR_MS, -1, 0, 1, HOUR_MS)}
        for at in asked:
            assert store.offset_by_time(topic, queue_id, at) == nearest(times, at), (topic, queue_id, at)


class Scene:
    """One store under a clock that jumps."""

    def __init__(self, fork_server: ForkServer, clock: ShiftedClock, rng: random.Random, path: Path) -> None:
        self.fork_server, self.clock, self.rng, self.path = fork_server, clock, rng, path
        self._born = 0
        self._writers: list[int] = []
        self._began_off_ms = clock.offset_ms

    def _fill(self) -> None:
        while len(self._writers) < WRITERS:
            self._born += 1
            settings: dict[str, Any] = {**SMALL, "services": self.rng.choice(["none", "all"])}
            self._writers.append(
                self.fork_server.fork(
                    "live", path=str(self.path), seed=self._born, settings=settings, steps=STEPS
                )
            )

    def end(self, count: int = WRITERS) -> None:
        """So many writers are killed."""
        self.rng.shuffle(self._writers)
        gone, self._writers = self._writers[:count], self._writers[count:]
        self.fork_server.kill(*gone)
        self.fork_server.reap(*gone)

    def jump(self) -> None:
        """A jump under live writers, or in between, when some or all of them are new."""
        self._fill()
        self.fork_server.news(self.rng.randrange(5, 30))
        self.end(self.rng.choice([0, 0, 1, WRITERS]))
        self.clock.offset_ms += self.rng.choice(JUMPS_MS)
        jumped_s = time.monotonic()
        self._fill()
        # A put that was on its way has the time before the jump, and so may those of the same millisecond.
        while time.monotonic() < jumped_s + SAME_TIME_S:
            self.fork_server.news(1)
        self.fork_server.news(WRITERS * BATCH + self.rng.randrange(1, 20))

    def now_ms(self) -> int:
        """The time that the store began with, and what has passed since."""
        return time.time_ns() // 1_000_000 + self._began_off_ms


def run(run: Run) -> None:
    for_all = run.folder("clock")
    clock = ShiftedClock(for_all)
    with ForkServer(clock.environment(environment("failpoints"))) as fork_server:
        check_clock(fork_server, clock)
        for case in run.cases(worth=JUMPS_A_CASE):
            with run.case(case), case.in_memory() as folder:
                fork_server.begin()
                clock.offset_ms = 0 if case.shape.name else case.rng.choice(JUMPS_MS)
                case.begin(folder / "store", SMALL)  # by this process, whose clock does not jump
                scene = Scene(fork_server, clock, case.rng, folder / "store")
                for _ in range(JUMPS_A_CASE):
                    scene.jump()
                scene.end()
                with cystore.open(folder / "store", **SMALL) as store:
                    check(store, fork_server.acknowledged)
                    store.put("shared", b"at the checker's time", keys=("last",), flush="sync")
                    check_times(store, case.rng)
                    ahead_ms = list(store.scan())[-1].store_timestamp_ms - scene.now_ms()
                    assert abs(ahead_ms) < BELIEVED_MS, f"a clock that jumped was believed: {ahead_ms} ms"
                check_closed(folder / "store", SMALL)
                after_check(folder / "store", SMALL, fork_server.acknowledged)
                run.tally(acknowledged=len(fork_server.acknowledged), stores=1)


FAULT = Fault(
    "clock",
    "the wall clock jumps by an hour or a day, forwards and back, under live writers and between lives",
    500,
    20,
    run,
    no_compiler,
)
