"""Signals: an exception comes out of a signal handler at any instruction of a public call, as Ctrl-C and a soft time
limit do.

A timer of random microseconds interrupts calls of one attached process, again and again, while others write.
Afterwards nobody holds a lock, every call works in every process, and all that was acknowledged is there.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import cystore
from cystore.errors import StoreLockedError
from cystore.layout import LOCK_NAMES
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.processes import worker
from tests.support.processes.forks import Child, Nursery
from tests.support.processes.worker import ALL, DUTIES, PUTS, READS, check_kept
from tests.support.small_stores import SETTINGS

OTHERS = 2
INTERRUPTS = 100  # of a case
CALM = ("put", "put_many", "get", "query", "dispatch", "flush")
FREE_S = 10.0  # within which a lock that nobody uses is free

# `storm` interrupts calls; a timer fires once, so nothing is interrupted behind the `try`.
STORM = """
import random, signal
class Interrupted(BaseException):
    pass
def interrupt(number, frame):
    raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
def once(name, seconds):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            w.attempt(name)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return 1
    return 0
def storm(count, names, rng):
    met = 0
    while met < count:
        name = rng.choice(names)
        met += once(name, 10 ** rng.uniform(-6, -2.5))
        w.revive()
    return met
"""


def run(run: Run, *, planted: str = "") -> None:
    with Nursery() as nursery:
        nursery.do(worker.IMPORT)
        for case in run.cases(worth=INTERRUPTS):
            with run.case(case), case.in_memory() as folder:
                case.begin(folder / "store", SETTINGS)
                storm(case, nursery, folder / "store", run, planted)


def storm(case: Case, nursery: Nursery, path: Path, run: Run, planted: str) -> None:
    rng = case.rng
    settings = {**SETTINGS, "services": rng.choice(("none", "all"))}
    with ExitStack() as stack:
        seeds = [rng.randrange(1 << 40) for _ in range(1 + OTHERS)]
        first, *others = [stack.enter_context(worker.born(nursery, path, settings, seed)) for seed in seeds]
        first.do(STORM)
        for other in others:
            other.send("w.work(80, names)", names=CALM)
        first.do("storm(count, names, random.Random(seed))", count=INTERRUPTS, names=ALL, seed=rng.random())
        for other in others:
            other.answer()
        if planted:
            first.do(planted)
        acknowledged = []
        for one in (first, *others):
            mine, raised, missing = one.do("w.told()")
            assert not raised and not missing, (raised[:3], missing[:3])
            acknowledged += mine
        with cystore.open(path, **SETTINGS) as observer:
            free(observer)
            check_kept(observer, acknowledged)
        for one in (first, *others):
            one.do("w.goes_on(names)", names=(*PUTS, *READS, *DUTIES, "reopen"))
        finish(path, [first, *others], run)


def free(store: cystore.MessageStore) -> None:
    """Nobody holds any lock for good."""
    control, until = store._attached().control, time.monotonic() + FREE_S
    for name in LOCK_NAMES:
        while owner := control.owner(name):
            assert time.monotonic() < until, f"thread {owner} keeps the {name} lock"
            store.wait_log(store.wrote_position, 0.01)


def alone(path: Path, workers: list[Child]) -> cystore.MessageStore:
    """The store, when nobody else has it. A store that an interrupted call dropped is left when it is collected, by a
    thread that may take its time; Python collects nothing for one thread while another one is collecting."""
    until = time.monotonic() + FREE_S
    while True:
        try:
            return cystore.open(path, **SETTINGS, exclusive=True)
        except StoreLockedError:
            assert time.monotonic() < until, "somebody keeps the store open"
        for one in workers:
            one.do("import gc; gc.collect()")
        with cystore.open(path, **SETTINGS) as observer:
            observer.wait_log(observer.wrote_position, 0.01)


def finish(path: Path, workers: list[Child], run: Run) -> None:
    """Everybody closes; the store is free, whole, and has everything."""
    acknowledged = [one for each in workers for one in each.do("w.told()")[0]]
    for one in workers:
        one.do("w.store.close()")
    with alone(path, workers) as store:
        assert store.recovery is not None and not store.recovery.abnormal
        check_kept(store, acknowledged)
    for one in workers:
        one.end()
    check_closed(path, SETTINGS)
    aftermath(path, SETTINGS, lambda store: check_kept(store, acknowledged))
    run.tally(acknowledged=len(acknowledged), stores=1)


FAULT = Fault(
    "signals",
    "an exception out of a signal handler at any instruction of every public call of one of three processes",
    100_000,
    2 * INTERRUPTS,
    run,
)
