"""Clean beside flush: several processes clean, flush, put and scrub at once; segments are tiny and expire at once.

A file that the cleaner took away is no damage and no failing disk: no call raises, nobody turns read-only, and what
is not cleaned is whole.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.processes import worker
from tests.support.processes.forks import Nursery
from tests.support.processes.worker import ALL, DUTIES, PUTS, check_kept
from tests.support.small_stores import SETTINGS

PROCESSES = 4
STEPS = 60
LOG_BYTES = 4096
SETTINGS_HERE = {**SETTINGS, "mapped_file_size_commit_log_bytes": LOG_BYTES, "file_reserved_time_h": 0}
WEIGHTED = (*PUTS, *PUTS, *ALL, *("clean", "flush", "scrub") * 4)
# The answers to a reader of a cleaned message.
CLEANED = {"OFFSET_TOO_SMALL", "MESSAGE_WAS_REMOVING", "NO_MESSAGE_IN_QUEUE", "not by key", worker.LATER}


def run(run: Run, *, planted: str = "") -> None:
    with Nursery() as nursery:
        nursery.do(worker.IMPORT)
        for case in run.cases(worth=PROCESSES):
            with run.case(case), case.in_memory() as folder:
                case.begin(folder / "store", SETTINGS_HERE)
                at_once(case, nursery, folder / "store", run, planted)


def at_once(case: Case, nursery: Nursery, path: Path, run: Run, planted: str) -> None:
    rng = case.rng
    acknowledged = []
    with ExitStack() as stack:
        workers = []
        for _ in range(PROCESSES):
            settings = {**SETTINGS_HERE, "services": rng.choice(("none", ["flush", "allocate"], "all"))}
            workers.append(stack.enter_context(worker.born(nursery, path, settings, rng.randrange(1 << 40))))
        for one in workers:
            one.send("w.work(steps, names)", steps=STEPS, names=WEIGHTED)
        for one in workers:
            one.answer()
        if planted:
            workers[0].do(planted)
        for one in workers:
            mine, raised, missing = one.do("w.told()")
            wrong = [
                each for each in raised if each[:2] != ["scan", "OffsetError"]
            ]  # where it was, is cleaned
            assert not wrong, wrong[:3]
            unknown = [each for each in missing if each[3] not in CLEANED]
            assert not unknown, unknown[:3]
            acknowledged += mine
        with cystore.open(path, **SETTINGS_HERE) as observer:
            check_kept(observer, acknowledged)
        for one in workers:
            one.do("w.goes_on(names)", names=(*PUTS, *DUTIES))
        acknowledged = [each for one in workers for each in one.do("w.told()")[0]]
        for one in workers:
            one.do("w.store.close()")
            one.end()
    with cystore.open(path, **SETTINGS_HERE) as store:
        kept = check_kept(store, acknowledged)
    check_closed(path, SETTINGS_HERE)
    aftermath(path, SETTINGS_HERE, lambda store: check_kept(store, acknowledged))
    run.tally(acknowledged=len(acknowledged), kept_by_the_cleaner=kept)


FAULT = Fault(
    "clean-beside-flush",
    "four processes clean, flush, put and scrub at once; segments of 4 KiB expire at once",
    4_000,
    4 * PROCESSES,
    run,
)
