"""Resources: a process has no descriptors, or no memory, for a while.

Limits of one of several attached processes are lowered at random moments and raised again. Its calls fail with typed
errors, for that call alone: nobody turns read-only, and when the limit is raised everything works and all that was
acknowledged is there.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.processes import worker
from tests.support.processes.forks import Nursery
from tests.support.processes.worker import ALL, DUTIES, PUTS, READS, check_kept
from tests.support.small_stores import SETTINGS

OTHERS = 1
ROUNDS = 6  # of a case: each lowers the limit once
STEPS = 15
CALM = ("put", "put_many", "get", "query", "dispatch", "flush")
# The calls of the process that starves. Opening is tried without descriptors, not without memory for a thread's stack.
STARVED = {"descriptors": ALL, "memory": (*PUTS, *READS, *DUTIES)}
# Typed errors that a call without descriptors or memory may raise. Never one of a disk that failed.
ALLOWED = {"StoreResourceError", "StoreTimeoutError"}
# The interpreter's own objects need memory too.
ALLOWED_WITHOUT_MEMORY = ALLOWED | {"MemoryError"}
# The errors that a starved reader may get for a message that it could not dispatch.
BEHIND = {"OFFSET_OVERFLOW_ONE", "OFFSET_OVERFLOW_BADLY", "NO_MATCHED_LOGIC_QUEUE", "NO_MESSAGE_IN_QUEUE"}

LIMITS = """
import os, resource
def descriptors(spare):
    "Few more than are open; the lowest free ones count."
    used = max(map(int, os.listdir("/proc/self/fd")))
    low(resource.RLIMIT_NOFILE, used + spare)
def memory(spare):
    pages = int(open("/proc/self/statm").read().split()[0])
    low(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + spare)
def low(which, soft):
    global lowered
    lowered = which, resource.getrlimit(which)
    resource.setrlimit(which, (soft, lowered[1][1]))
def raised():
    resource.setrlimit(*lowered)
def without(limit, spare, steps, names):
    limit(spare)
    try:
        w.work(steps, names)
    finally:
        raised()
"""


def run(kind: str, run: Run, *, planted: str = "") -> None:
    with Nursery() as nursery:
        nursery.do(worker.IMPORT)
        for case in run.cases(worth=ROUNDS):
            with run.case(case), case.in_memory() as folder:
                case.begin(folder / "store", SETTINGS)
                starve(kind, case, nursery, folder / "store", run, planted)


def spare(kind: str, rng: random.Random) -> int:
    """How little is left: descriptors, or bytes of address space."""
    if kind == "descriptors":
        return rng.choice((0, 0, 1, 2, 3, 5))
    return rng.choice((0, 0, rng.randrange(1 << 14), rng.randrange(1 << 18), rng.randrange(1 << 20)))


def starve(kind: str, case: Case, nursery: Nursery, path: Path, run: Run, planted: str) -> None:
    rng = case.rng
    settings = {**SETTINGS, "services": rng.choice(("none", ["flush", "allocate"], "all"))}
    allowed = ALLOWED if kind == "descriptors" else ALLOWED_WITHOUT_MEMORY
    with ExitStack() as stack:
        seeds = [rng.randrange(1 << 40) for _ in range(1 + OTHERS)]
        workers = [stack.enter_context(worker.born(nursery, path, settings, seed)) for seed in seeds]
        poor, *others = workers
        poor.do(LIMITS)
        failed = 0
        for _ in range(ROUNDS):
            for other in others:
                other.send("w.work(20, names)", names=CALM)
            poor.do("w.work(5, names)", names=ALL)
            left = spare(kind, rng)
            poor.do(f"without({kind}, spare, steps, names)", spare=left, steps=STEPS, names=STARVED[kind])
            raised, missing = poor.do("w.told()[1:]")
            others_raised = [one for other in others for one in (other.answer(), other.do("w.told()[1]"))[1]]
            assert not others_raised, (left, others_raised[:3])
            wrong = [one for one in raised if one[1] not in allowed]
            unknown = [one for one in missing if one[3] not in BEHIND]
            assert not wrong and not unknown, (left, wrong[:3], unknown[:3])
            failed += len(raised)
            if planted:
                poor.do(planted)
            for one in workers:
                one.do("w.revive(); w.goes_on(names)", names=(*PUTS, *READS, *DUTIES))
        acknowledged = [one for each in workers for one in each.do("w.told()")[0]]
        for one in workers:
            one.do("w.store.close()")
            one.end()
    with cystore.open(path, **SETTINGS) as store:
        check_kept(store, acknowledged)
    check_closed(path, SETTINGS)
    aftermath(path, SETTINGS, lambda store: check_kept(store, acknowledged))
    run.tally(acknowledged=len(acknowledged), calls_failed=failed)


DESCRIPTORS = Fault(
    "descriptors",
    "RLIMIT_NOFILE is lowered to what is open, or a few more, and raised again, under one of two attached processes",
    5_000,
    4 * ROUNDS,
    partial(run, "descriptors"),
)
MEMORY = Fault(
    "memory",
    "RLIMIT_AS is lowered to what is mapped, or a little more, and raised again, under one of two attached processes",
    5_000,
    ROUNDS,
    partial(run, "memory"),
)
