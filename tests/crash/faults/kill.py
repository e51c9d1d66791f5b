"""Kill: SIGKILL for any of several writers, at random moments."""

from __future__ import annotations

import cystore
from tests.checks import check, check_closed
from tests.crash.matrix import Fault, Run
from tests.crash.writers import acknowledged, start
from tests.process import processes
from tests.small import SETTINGS


def run(run: Run) -> None:
    for case in run.cases(worth=4):
        with run.case(case):
            path, log = case.folder / "store", case.folder / "acknowledged"
            with cystore.open(path, **SETTINGS) as store, processes(4) as writers:
                for number, writer in enumerate(writers):
                    start(writer, path, log, number)
                    writer.send("work(100000)")
                until = case.rng.randrange(50, 1000)
                while store.stats()["put_count"] < until:
                    store.wait_log(store.wrote_position, 1)
                for writer in writers:
                    writer.kill()
                run.tally(acknowledged=check(store, acknowledged(log)))
            check_closed(path, SETTINGS)


FAULT = Fault("kill", "SIGKILL for any of the writers, at random moments", 20_000, 20, run)
