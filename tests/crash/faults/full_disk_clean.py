"""Full disk, cleaned: a disk is full to the last byte, and on it a store is cleaned, closed and opened.

What expired goes although nothing can be written. `close` says so when something could not be made durable. When
there is space everything continues.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import cystore
from cystore.engine.files.checkpoint import read_checkpoint
from tests.crash.faults.full_disk import BALLAST, KINDS, SIZE_BYTES, obstacle, use_up
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.disks.disks import Disk
from tests.support.processes import worker
from tests.support.processes.forks import Child, Nursery
from tests.support.processes.worker import PUTS, check_kept
from tests.support.small_stores import SETTINGS

WRITERS = 2
CALLS = 4  # of a case on the full disk: two that clean, one that closes, one that opens
LOG_BYTES = 64 * 1024
SETTINGS_HERE = {
    **SETTINGS,
    "mapped_file_size_commit_log_bytes": LOG_BYTES,
    "mapped_file_size_consume_queue_bytes": 500 * 20,
    "max_queues": 64,
    "file_reserved_time_h": 0,
}
FULL = {"StoreFullError"}
# The errors of `close` on a full disk: they say that something is not durable.
NOT_DURABLE = {"NotDurableError"}

FILL = """
def fill(names):
    full = 0
    while full < 3:
        if not w.attempt(w.rng.choice(names)):
            full += 1
def closed():
    try:
        w.store.close()
    except Exception as error:
        w.raised.append(("close", type(error).__name__, str(error), isinstance(error, cystore.StoreError)))
        return False
    return True
import cystore
w.body_bytes = 4000
"""


def run(run: Run, *, planted: str = "") -> None:
    with ExitStack() as machine:
        found: dict[str, Disk] = {}
        for case in run.cases(worth=CALLS):
            done = False
            with run.case(case):
                if not found:
                    nursery = machine.enter_context(Nursery(own_mounts=True))
                    nursery.do(worker.IMPORT)
                    folder = Path(mkdtemp(dir=case.folder.parent))
                    found = {kind: Disk(nursery, folder, kind, SIZE_BYTES[kind]) for kind in KINDS}
                clean_when_full(case, nursery, found[case.rng.choice(KINDS)], run, planted)
                done = True
            if not done:
                machine.close()
                found = {}


def clean_when_full(case: Case, nursery: Nursery, disk: Disk, run: Run, planted: str) -> None:
    rng, folder = case.rng, case.folder / "disk"
    settings = {**SETTINGS_HERE, "services": rng.choice(("none", ["flush", "allocate"]))}
    acknowledged: list[Any] = []
    with disk.mounted(folder) as seen, ExitStack() as stack:
        use_up(seen / BALLAST, rng.randrange(200_000, 600_000))
        store = folder / "store"
        case.begin(store, SETTINGS_HERE)
        seeds = [rng.randrange(1 << 40) for _ in range(WRITERS)]
        writers = [stack.enter_context(worker.born(nursery, store, settings, seed)) for seed in seeds]
        for writer in writers:
            writer.do(FILL)
        for writer in writers:
            writer.send("fill(names)", names=[*PUTS, *rng.choice(((), ("dispatch",), ("flush",)))])
        for writer in writers:
            writer.answer()
            acknowledged += told(writer, FULL)
        full(seen, 1)
        cleaned = writers[0].do("w.store.clean().segments")
        assert cleaned > 0, "nothing was cleaned on the full disk"
        full(seen, 2)
        writers[0].do("w.clean()")
        if rng.random() < 0.5:  # the last ones are killed: then `open` recovers on the full disk
            for writer in writers:
                writer.kill()
            said = 0
        else:
            said = sum(not writer.do("closed()") for writer in writers)
            for writer in writers:
                told(writer, NOT_DURABLE)
                writer.end()
            if not said:
                durable(seen / "store", acknowledged)
        (last,) = [stack.enter_context(worker.born(nursery, store, settings, rng.randrange(1 << 40)))]
        last.do("w.store.clean(); w.get(); w.stats()")
        (seen / BALLAST).unlink()
        for number in (1, 2):
            (seen / f"rest{number}").unlink()
        if planted:
            last.do(planted)
        last.do("w.goes_on(names)", names=("put", "put_sync", "put_many", "flush", "dispatch", "checkpoint"))
        acknowledged += told(last, set())
        last.do("w.store.close()")
        last.end()
        with cystore.open(seen / "store", **SETTINGS_HERE) as opened:
            kept = check_kept(opened, acknowledged)
        check_closed(seen / "store", SETTINGS_HERE)
        aftermath(seen / "store", SETTINGS_HERE, lambda opened: check_kept(opened, acknowledged))
        run.tally(
            acknowledged=len(acknowledged), kept=kept, segments_cleaned=cleaned, closes_that_said_so=said
        )
        case.shape.remove(seen / "store")
        gc.collect()  # what a closed store still maps would keep the disk from being unmounted


def full(seen: Path, number: int) -> None:
    """Takes what is left, to the last byte."""
    use_up(seen / f"rest{number}")
    left = os.statvfs(seen)
    assert left.f_bavail * left.f_frsize < 4096, left


def durable(path: Path, acknowledged: Sequence[Any]) -> None:
    """Everybody closed, and nobody said that something is not durable: the checkpoint's watermark is behind all of
    it."""
    end = max(one[4] + one[5] for one in acknowledged)
    watermark = read_checkpoint(path).watermark
    assert watermark >= end, (watermark, end)


def told(one: Child, allowed: set[str]) -> list[Any]:
    """The acknowledged puts; no other error was raised."""
    acknowledged, raised, missing = one.do("w.told()")
    wrong = [each for each in raised if each[1] not in allowed]
    assert not wrong and not missing, (wrong[:3], missing[:3])
    return acknowledged


FAULT = Fault(
    "full-disk-clean",
    "ext4 and tmpfs are full to the last byte; a store is cleaned, closed and opened there, and continues when "
    "there is space",
    1_000,
    2 * CALLS,
    run,
    obstacle,
)
