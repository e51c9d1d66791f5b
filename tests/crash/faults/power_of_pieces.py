"""Power cuts beside a piece of the store: a disk forgets what was not synced, while a process works, cleans, or
recovers. Each answer was durable, because all of them are with sync flush. The work and the check are those of the
piece's episode."""

from __future__ import annotations

import os
import select
from contextlib import ExitStack
from functools import partial
from types import ModuleType

from cystore.system import files
from tests.crash.episodes import claims, timer
from tests.crash.faults.lost_writes import on_disks
from tests.crash.matrix import Case, Fault, Run
from tests.support.disks.forgetful import ForgetfulDisk, Power, obstacle
from tests.support.processes.forks import Nursery

LIVES = 3  # of one store
SYNC = {"flush_disk_type": "sync", "allow_any_file_system": True}
SYNCS = 3  # requests of a put that change the disk, about
WAIT_S = 120.0


def run(run: Run, episode: ModuleType) -> None:
    with Power() as power:

        def made() -> Nursery:
            return Nursery({**os.environ}, own_mounts=True, keep=(power.tell,))

        on_disks(run, power, made, partial(_lives, run, episode))


def _lives(run: Run, episode: ModuleType, case: Case, nursery: Nursery, disk: ForgetfulDisk) -> None:
    rng, folder, log = case.rng, case.folder / "disk", case.folder / "log"
    store, cleans = folder / "store", rng.random() < 0.1
    for life in range(LIVES):
        disk.mount(folder)
        with ExitStack() as stack:
            stack.callback(disk.unmount, folder, in_use=True)
            disk.cut_at(rng.choice((rng.randrange(1, 60), rng.randrange(1, SYNCS * episode.COUNT))))
            one = stack.enter_context(nursery.fork())
            given = episode.in_life(store, log, rng, life, cleans=cleans)
            one.send(episode.WORK, **{**given, "settings": {**given["settings"], **SYNC}})
            assert select.select([one.answers, disk.power.gone], [], [], WAIT_S)[0], "the process hangs"
            disk.cut_now()
        case.lose_memory()
        gone = disk.power_on(rng)
        run.tally(**{f"forgotten_{name}": count for name, count in gone.items()})
    run.tally(calls=len(episode.notes(log)))
    case.faults = LIVES
    with disk.mounted(folder):
        episode.check(store, log, SYNC)
        case.shape.remove(store)
        files.sync_directory(folder)  # else the next store's power cut brings it back


def _row(name: str, episode: ModuleType, work: str) -> Fault:
    how = f"a FUSE disk (LazyFS's model) forgets what was not synced, at any request of a process that {work}"
    return Fault(name, how, 500, 3, partial(run, episode=episode), obstacle)


TIMER = _row("timer-power", timer, "puts messages with a time, cancels, moves, delivers and cleans")
CLAIMS = _row("claims-power", claims, "puts, claims, settles and gives back messages, and cleans")
