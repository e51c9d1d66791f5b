"""Full disk: a store fills a small disk, is read meanwhile, is killed on it, recovers on it, and continues when there
is space."""

from __future__ import annotations

import errno
import os
import random
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import after_check
from tests.support.checks import check, check_closed
from tests.support.disks import disks
from tests.support.disks.disks import Disk
from tests.support.processes.forks import Child, Nursery
from tests.support.small_stores import SETTINGS

WRITERS = 3
KINDS = ("ext4", "tmpfs")
SIZE_BYTES = {"ext4": 5 * disks.MIB, "tmpfs": 3 * disks.MIB}
BALLAST = "ballast"
SETTINGS_HERE = {
    **SETTINGS,
    "mapped_file_size_commit_log_bytes": 128 * 1024,
    "mapped_file_size_consume_queue_bytes": 500 * 20,
    "max_queues": 64,
    "services": ["flush", "allocate"],
    "flush_interval_commit_log_ms": 2,
    "flush_interval_consume_queue_ms": 5,
    "flush_consume_queue_thorough_interval_ms": 5,
}

# `fill` writes until the store is full for the third time, `put` once; both give what was acknowledged. The reader
# reads on.
WRITER = """
import cystore, logging, random, threading
from tests.support.checks import everything
logging.disable()  # full disks are what this is about
store = cystore.open(path, **settings)
rng = random.Random(seed)
count = 0
def put():
    global count
    count += 1
    topic, key = f"T{rng.randrange(9)}" if rng.random() < 0.1 else "shared", f"{seed}.{count}"
    flush = "sync" if rng.random() < 0.1 else "async"
    r = store.put(topic, b"x" * rng.randrange(4000), queue_id=count % 2, keys=(key,), flush=flush)
    return [topic, count % 2, r.queue_offset, key]
def fill(times=3):
    done = []
    while times:
        try:
            done.append(put())
            if count % 50 == 0:
                store.flush()
        except cystore.StoreFullError:
            times -= 1
    return done
reads, stop, trouble = 0, threading.Event(), []
def read():
    global reads
    try:
        while not stop.is_set():
            for (topic, queue_id), messages in everything(store).items():
                reads += len(messages)
                if messages:
                    last = rng.choice(messages)
                    assert any(m.queue_offset == last.queue_offset for m in store.query(topic, last.keys[0])), last
    except Exception as error:
        trouble.append(repr(error))
reader = threading.Thread(target=read)
def end_reading():
    stop.set()
    reader.join()
    assert not trouble, trouble
    return reads
"""


def obstacle() -> str:
    return disks.obstacle("ext4") or disks.obstacle("tmpfs")


def run(run: Run) -> None:
    with ExitStack() as machine:
        found: dict[str, Disk] = {}
        for case in run.cases():
            done = False
            with run.case(case):
                if not found:
                    nursery = machine.enter_context(Nursery(own_mounts=True))
                    folder = Path(mkdtemp(dir=case.folder.parent))
                    found = {kind: Disk(nursery, folder, kind, SIZE_BYTES[kind]) for kind in KINDS}
                fill_and_drain(case, nursery, found[case.rng.choice(KINDS)], run)
                done = True
            if not done:
                machine.close()
                found = {}


def fill_and_drain(case: Case, nursery: Nursery, disk: Disk, run: Run) -> None:
    rng, folder = case.rng, case.folder / "disk"
    with disk.mounted(folder) as seen, ExitStack() as stack:
        use_up(seen / BALLAST, rng.randrange(200_000, 600_000))
        store = folder / "store"
        case.begin(store, SETTINGS_HERE)
        writers = [opened(stack, nursery, store, rng) for _ in range(WRITERS)]
        reader = writers.pop()
        reader.do("reader.start()")
        acknowledged = in_all(writers, "fill()")
        if rng.random() < 0.5:
            use_up(seen / "rest")  # to the last byte
            acknowledged += in_all(writers, "fill(1)")
        read = reader.do("end_reading()")
        writers.append(reader)
        if rng.random() < 0.5:
            for writer in writers:
                writer.kill()
            writers = [opened(stack, nursery, store, rng) for _ in range(WRITERS)]
            acknowledged += in_all(writers, "fill(1)")
            run.tally(recovered_on_a_full_disk=1)
        for name in (BALLAST, "rest"):
            (seen / name).unlink(missing_ok=True)
        acknowledged += in_all(writers, "[put() for _ in range(10)]")
        in_all(writers, "store.close(); []")
        for writer in writers:
            writer.end()
        with cystore.open(seen / "store", **SETTINGS_HERE | {"services": "none"}) as opened_here:
            run.tally(acknowledged=check(opened_here, acknowledged), read_meanwhile=read)
        check_closed(seen / "store", SETTINGS_HERE | {"services": "none"})
        if not case.shape.folders:  # a plain copy of such a store is refused
            # The aftermath makes one more queue, for which this disk may have no room.
            copy = case.folder / "copy"
            shutil.copytree(seen / "store", copy)
            after_check(copy, {**SETTINGS_HERE, "services": "none"}, acknowledged)
        case.shape.remove(seen / "store")


def opened(stack: ExitStack, nursery: Nursery, store: Path, rng: random.Random) -> Child:
    child = stack.enter_context(nursery.fork())
    child.do(WRITER, path=str(store), settings=SETTINGS_HERE, seed=rng.randrange(1 << 40))
    return child


def in_all(writers: list[Child], what: str) -> list[list[Any]]:
    """At once in every process; gives what they answered, one behind the other."""
    for writer in writers:
        writer.send(what)
    return [one for writer in writers for one in writer.answer()]


def use_up(path: Path, size_bytes: int | None = None) -> None:
    """Takes so much of the disk, or all that is left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if size_bytes is not None:
            os.posix_fallocate(fd, 0, size_bytes)
            return
        piece = 1 << 16
        while piece:
            try:
                if os.write(fd, bytes(piece)) < piece:
                    piece //= 2
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2
    finally:
        os.close(fd)


FAULT = Fault(
    "full-disk",
    "ext4 and tmpfs of a few MB are filled, read from, recovered on, and have space again, without a restart",
    500,
    4,
    run,
    obstacle,
)
