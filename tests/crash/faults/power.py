"""Power: the file system under a store is shut down while others write; what was promised to be on the disk must be
on it."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.disks import disks
from tests.support.disks.disk_writers import Acknowledgements, start
from tests.support.disks.disks import Disk
from tests.support.processes.forks import Nursery
from tests.support.small_stores import SETTINGS

WRITERS = 3
CUTS = 4  # of one store
SIZE_BYTES = {"ext4": 48 * disks.MIB, "xfs": 320 * disks.MIB}


def run(kind: str, run: Run) -> None:
    with Acknowledgements() as told, ExitStack() as machine:
        disk: Disk | None = None
        for case in run.cases(worth=CUTS):
            done = False
            with run.case(case):
                if disk is None:
                    nursery = machine.enter_context(Nursery(own_mounts=True, keep=(told.out,)))
                    disk = Disk(nursery, Path(mkdtemp(dir=case.folder.parent)), kind, SIZE_BYTES[kind])
                lives(case, nursery, disk, told, run)
                done = True
            if not done:
                machine.close()
                if disk is not None:
                    disk.image.rename(case.folder / disk.image.name)
                disk = None


def lives(case: Case, nursery: Nursery, disk: Disk, told: Acknowledgements, run: Run) -> None:
    """A store that loses its power again and again, while it is written to or while it recovers."""
    rng, folder = case.rng, case.folder / "disk"
    told.forget()
    settings = {
        **SETTINGS,
        "services": rng.choice(("none", "all", ["flush", "allocate"])),
        "flush_interval_commit_log_ms": 2,
        "flush_interval_consume_queue_ms": 5,
    }
    sync_share = rng.choice((0.0, 0.2, 1.0))
    if case.shape.name:
        with disk.mounted(folder) as seen:
            case.begin(seen / "store", SETTINGS)
    for _ in range(CUTS):
        disk.mount(folder)
        with ExitStack() as stack:
            stack.callback(disk.unmount, folder, in_use=True)
            writers = [stack.enter_context(nursery.fork()) for _ in range(WRITERS)]
            for writer in writers:
                seed = rng.randrange(1 << 40)
                start(writer, told, folder / "store", settings, seed=seed, sync_share=sync_share)
            more = rng.choice((0, rng.randrange(1, 60), rng.randrange(60, 300)))
            told.wait(len(told.puts) + more, writers)
            how = rng.choice(disks.POWER_CUTS)
            told.take()
            disks.shut_down(folder, how)
        told.take(in_time=False)
        case.lose_memory()
        with disk.mounted(folder) as seen:
            # Half of the time only looked at: then the next life begins with a recovery, which may lose the power, too.
            read_only = (seen / "store" / "lock").exists() and rng.random() < 0.5
            with cystore.open(seen / "store", **{**SETTINGS, "read_only": read_only}) as store:
                left, gone = told.check(store)
            run.tally(acknowledged=left, lost_not_durable=gone)
            if not read_only:
                check_closed(seen / "store", SETTINGS)
                aftermath(seen / "store", SETTINGS, told.check)
    with disk.mounted(folder) as seen:
        case.shape.remove(seen / "store")


def fault(name: str, kind: str, part: int) -> Fault:
    how = f"{kind} in an image is shut down by ioctl while several write, or recover; mounted again"
    return Fault(name, how, 10_000, part, partial(run, kind), partial(disks.obstacle, kind))


FAULTS = (fault("power", "ext4", 10), fault("power-xfs", "xfs", 6))
