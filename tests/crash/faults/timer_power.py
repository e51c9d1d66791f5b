"""Timer-power: a disk forgets what was not synced, while a process puts messages with a time of their own, cancels,
moves and delivers them, cleans, or recovers. Each answer was durable, because all of them are with sync flush."""

from __future__ import annotations

import os
import select
from contextlib import ExitStack

from cystore.system import files
from tests.crash.episodes import timer
from tests.crash.matrix import Case, Fault, Run
from tests.support.disks.forgetful import ForgetfulDisk, Power, obstacle
from tests.support.processes.forks import Nursery

LIVES = 3  # of one store
SETTINGS = {"flush_disk_type": "sync", "allow_any_file_system": True}
SYNCS = 3  # requests of a put that change the disk, about
WAIT_S = 120.0


def run(run: Run) -> None:
    with Power() as power, ExitStack() as machine:
        disk: ForgetfulDisk | None = None
        for case in run.cases():
            done = False
            with run.case(case):
                if disk is None:
                    nursery = machine.enter_context(
                        Nursery({**os.environ}, own_mounts=True, keep=(power.tell,))
                    )
                    disk = machine.enter_context(ForgetfulDisk(nursery, power))
                _lives(case, nursery, disk, run)
                done = True
            if not done:
                if disk is not None:
                    disk.copy_left(case.folder / "left")
                machine.close()
                disk = None


def _lives(case: Case, nursery: Nursery, disk: ForgetfulDisk, run: Run) -> None:
    rng, folder, log = case.rng, case.folder / "disk", case.folder / "log"
    store, settings = folder / "store", {**timer.TIMED, **SETTINGS}
    later = timer.LATER_MS if rng.random() < 0.1 else 0
    for life in range(LIVES):
        disk.mount(folder)
        with ExitStack() as stack:
            stack.callback(disk.unmount, folder, in_use=True)
            disk.cut_at(rng.choice((rng.randrange(1, 60), rng.randrange(1, SYNCS * timer.COUNT))))
            one = stack.enter_context(nursery.fork())
            given = timer.given(store, log, rng, life * 1_000_000, later)
            one.send(timer.WORK, **{**given, "settings": settings})
            assert select.select([one.answers, disk.power.gone], [], [], WAIT_S)[0], "the process hangs"
            disk.cut_now()
        case.lose_memory()
        gone = disk.power_on(rng)
        run.tally(**{f"forgotten_{name}": count for name, count in gone.items()})
    run.tally(calls=len(timer.notes(log)))
    case.faults = LIVES
    with disk.mounted(folder):
        timer.check(store, log, SETTINGS)
        case.shape.remove(store)
        files.sync_directory(folder)  # else the next store's power cut brings it back


FAULT = Fault(
    "timer-power",
    "a FUSE disk (LazyFS's model) forgets what was not synced, at any request of a process that puts messages with a "
    "time, cancels, moves, delivers and cleans",
    500,
    3,
    run,
    obstacle,
)
