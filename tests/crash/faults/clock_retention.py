"""Clock beyond retention: the wall clock jumps by a year, or by a little more than files are kept for, forwards and
back.

It jumps under live processes, which clean and deliver all the time, and between lives. Nothing is removed by a jump
alone, and nothing is delivered early. When the clock is right again everything continues.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.processes import worker
from tests.support.processes.fork_server import no_compiler
from tests.support.processes.forks import Child, Nursery
from tests.support.processes.shifted import ShiftedClock
from tests.support.processes.worker import PUTS, check_kept
from tests.support.small_stores import SETTINGS

HOUR_MS = 3_600_000
RETENTION_H = 72
JUMPS_MS = tuple(sign * hours * HOUR_MS for hours in (365 * 24, RETENTION_H + 8) for sign in (1, -1))
WRITERS = 2
JUMPS_A_CASE = 2
MINUTE_MS = 60_000
LATE = "late"
LATE_LEVEL = 14  # ten minutes: no case takes so long
SOON = "soon"
SOON_LEVEL = 1  # a second
SETTINGS_HERE: dict[str, Any] = {
    **SETTINGS,
    "file_reserved_time_h": RETENTION_H,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
}
CALLS = (*PUTS, "get", "query", "clean", "deliver", "clean_due", "dispatch", "flush")
DELAYED = """
def delayed(topic, level):
    key = f"{topic}.{w.name}.{len(w.acknowledged)}"
    w.store.put(topic, b"waits", keys=(key,), delay_level=level)
    w.committed()
    return key
def first_kept():
    return w.store.stats()["min_physical_offset"]
def found(topic):
    return [key for m in w.store.get(topic, 0, 0).messages for key in m.keys] if topic in w.store.topics() else []
w.body_bytes = 3000
"""


def run(run: Run, *, planted: str = "") -> None:
    clock = ShiftedClock(run.folder("clock"))
    with Nursery(clock.environment({**os.environ})) as nursery:
        nursery.do(worker.IMPORT)
        for case in run.cases(worth=JUMPS_A_CASE):
            with run.case(case), case.in_memory() as folder:
                clock.offset_ms = 0
                case.begin(folder / "store", SETTINGS_HERE)
                jump(case, nursery, clock, folder / "store", run, planted)


def jump(case: Case, nursery: Nursery, clock: ShiftedClock, path: Path, run: Run, planted: str) -> None:
    rng, lives = case.rng, 0
    acknowledged: list[Any] = []
    with ExitStack() as stack:

        def born() -> list[Child]:
            found = []
            for _ in range(WRITERS):
                settings = {**SETTINGS_HERE, "services": rng.choice(("none", "all"))}
                seed = rng.randrange(1 << 40)
                found.append(stack.enter_context(worker.born(nursery, path, settings, seed)))
                found[-1].do(DELAYED)
            return found

        workers = born()
        for one in workers:
            one.do("w.work(40, names); delayed(topic, level)", names=CALLS, topic=LATE, level=LATE_LEVEL)
        for _ in range(JUMPS_A_CASE):
            between = rng.random() < 0.4
            if between:
                for one in workers:
                    acknowledged += told(one)
                    one.do("w.store.close()")
                    one.end()
                lives += 1
            ms = rng.choice(JUMPS_MS)
            clock.offset_ms = ms
            if between:
                workers = born()
            for one in workers:
                one.send("w.work(20, names)", names=CALLS)
            for one in workers:
                one.answer()
            if planted:
                workers[0].do(planted)
            for one in workers:
                assert one.do("first_kept()") == 0, f"a jump of {ms // HOUR_MS} h removed segments"
                assert one.do("found(topic)", topic=LATE) == [], "delivered early"
            clock.offset_ms = 0
            for one in workers:
                one.do("w.goes_on(names)", names=CALLS)
        goes_on(workers[0], clock, deliver=case.number % 4 == 0)
        for one in workers:
            acknowledged += told(one)
            one.do("w.store.close()")
            one.end()
    with cystore.open(path, **SETTINGS_HERE) as store:
        assert check_kept(store, acknowledged) == len(acknowledged)
        stamped = [m.store_timestamp_ms for m in store.scan()]
        assert stamped == sorted(stamped), "a store timestamp went back"
    check_closed(path, SETTINGS_HERE)
    aftermath(path, SETTINGS_HERE, lambda store: check_kept(store, acknowledged))
    run.tally(acknowledged=len(acknowledged), between_lives=lives)


def goes_on(one: Child, clock: ShiftedClock, *, deliver: bool) -> None:
    """The clock is right: new records have its time, and what is due within a second is delivered."""
    stamp = one.do(
        "w.put(); w.committed(); w.store.read(w.acknowledged[-1][4]).store_timestamp_ms",
    )
    off_ms = stamp - time.time_ns() // 1_000_000
    assert abs(off_ms) < MINUTE_MS, f"new records are {off_ms} ms off"
    if not deliver:
        return
    key = one.do("delayed(topic, level)", topic=SOON, level=SOON_LEVEL)
    until = time.monotonic() + MINUTE_MS / 1000
    while key not in one.do("w.store.deliver(); found(topic)", topic=SOON):
        assert time.monotonic() < until, "not delivered within a minute"
        one.do("w.store.wait_log(w.store.wrote_position, 0.05)")


def told(one: Child) -> list[Any]:
    """The acknowledged puts; nothing was raised, nothing is missing."""
    acknowledged, raised, missing = one.do("w.told()")
    assert not raised and not missing, (raised[:3], missing[:3])
    return acknowledged


FAULT = Fault(
    "clock-retention",
    f"the wall clock jumps by a year or {RETENTION_H + 8} h, either way, under processes that clean and "
    "deliver, and between lives",
    1_000,
    4 * JUMPS_A_CASE,
    run,
    no_compiler,
)
