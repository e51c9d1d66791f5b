"""Full disk, opened again: a store with a backlog is closed or killed on a full disk, and opened one to five times,
alone on its disk or beside a program that takes each byte that comes free. Then it is cleaned.

No open may take what the clean needs: expired segments go, the store takes puts again, and every acknowledged message
that has not expired is there. Queues continue to count.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.crash.faults.full_disk import KINDS, obstacle, use_up
from tests.crash.matrix import Case, Fault, Run
from tests.support.disks.disks import MIB, Disk
from tests.support.processes.forks import Child, Nursery
from tests.support.small_stores import SETTINGS

SIZE_BYTES = 14 * MIB
REOPENS = 5
LOG_BYTES = 128 * 1024
SETTINGS_HERE = {
    **SETTINGS,
    "mapped_file_size_commit_log_bytes": LOG_BYTES,
    "mapped_file_size_consume_queue_bytes": 1000 * 20,
    "max_hash_slot_num": 1000,
    "max_index_num": 20_000,
    "max_queues": 4096,
    "file_reserved_time_h": 0,
    "disk_space_warning_level_ratio": 100,
}
ENOUGH_BYTES = 1024 * 1024  # of cleaned log: the store's reserved space and a step of the log
QUEUE_BYTES = 8192  # more, for each queue that a deletion has to dispatch

# `told`: topic, queue offset and physical offset of each acknowledged put.
LIFE = """
import cystore, logging, random
logging.disable()  # full disks are what this is about
store, told, rng = cystore.open(path, **settings), [], random.Random(seed)
def put(topic, size=600):
    r = store.put(topic, bytes(rng.randrange(size)), queue_id=0, keys=(f"{seed}.{len(told)}",))
    told.append([topic, r.queue_offset, r.physical_offset])
def fill(count, topics, dispatches):
    try:
        for number in range(count):
            put(f"T{number % topics}")
            if dispatches and number % 100 == 0:
                store.dispatch()
    except cystore.StoreFullError:
        pass
def attempt(call):
    try:
        call()
    except cystore.StoreFullError:
        return False
    return True
def closed():
    try:
        store.close()
    except cystore.NotDurableError:
        pass
def kept(acknowledged, given_up):
    store.dispatch()
    minimum, count = store.stats()["min_physical_offset"], 0
    for topic, queue_offset, physical_offset in acknowledged:
        assert store.next_queue_offset(topic, 0) > queue_offset, (topic, queue_offset)
        if physical_offset < minimum or topic in given_up:
            continue
        (message,) = store.get(topic, 0, queue_offset, 1).messages
        found = message.queue_offset, message.physical_offset
        assert found == (queue_offset, physical_offset), (topic, queue_offset, found)
        count += 1
    return count
"""


def run(run: Run) -> None:
    with ExitStack() as machine:
        found: dict[str, Disk] = {}
        for case in run.cases():
            done = False
            with run.case(case):
                if not found:
                    nursery = machine.enter_context(Nursery(own_mounts=True))
                    nursery.do("import cystore")
                    folder = Path(mkdtemp(dir=case.folder.parent))
                    found = {kind: Disk(nursery, folder, kind, SIZE_BYTES) for kind in KINDS}
                reopen_and_clean(case, nursery, found[case.rng.choice(KINDS)], run)
                done = True
            if not done:
                machine.close()
                found = {}


def reopen_and_clean(case: Case, nursery: Nursery, disk: Disk, run: Run) -> None:
    rng, folder = case.rng, case.folder / "disk"
    topics = rng.choice((3, 30, 30, 800))
    beside = rng.random() < 0.5  # whether a program fills the disk all the time
    settings = {**SETTINGS_HERE, "services": rng.choice(("none", ["flush", "allocate"]))}
    acknowledged: list[Any] = []
    with disk.mounted(folder) as seen, ExitStack() as stack:
        store = folder / "store"
        life = opened(stack, nursery, store, settings, rng)
        count, dispatches = rng.choice((2_000, 8_000)), rng.random() < 0.5
        life.do("fill(count, topics, dispatches)", count=count, topics=topics, dispatches=dispatches)
        if rng.random() < 0.5:
            life.do("attempt(store.dispatch)")
        use_up(seen / "other")
        life.do("fill(count, topics, dispatches)", count=100_000, topics=topics, dispatches=dispatches)
        use_up(seen / "more")
        for number in range(rng.randint(1, REOPENS)):
            acknowledged += life.do("told")
            if rng.random() < 0.4:
                life.kill()
            else:
                life.do("closed()")
                life.end()
            if beside:
                use_up(seen / f"closed{number}")
            life = opened(stack, nursery, store, settings, rng)
            if beside:
                use_up(seen / f"opened{number}")
            life.do("fill(count, topics, False)", count=5, topics=topics)
        given_up = ["T1"] if (deletes := rng.random() < 0.25) else []
        before = life.do("store.stats()['min_physical_offset']")
        delete = 'store.delete_topic("T1")'  # what it cleans first may be too little for what it dispatches
        first = (
            f"attempt(lambda: {delete})" if deletes else rng.choice(("store.clean()", "store.clean_due()"))
        )
        life.do(f"{first}; store.clean()")
        after = life.do("store.stats()['min_physical_offset']")
        assert after > 0, "nothing was cleaned on the full disk"
        if after - before >= ENOUGH_BYTES + (topics * QUEUE_BYTES if deletes else 0):
            life.do(delete if deletes else 'put("T0")')
        for name in ("other", "more"):
            (seen / name).unlink()
        life.do('put("T0")')
        acknowledged += life.do("told")
        count = life.do("kept(acknowledged, given_up)", acknowledged=acknowledged, given_up=given_up)
        life.do("closed()")
        life.end()
        life = opened(stack, nursery, store, settings, rng)
        assert life.do("kept(acknowledged, given_up)", acknowledged=acknowledged, given_up=given_up) == count
        life.do("closed()")
        life.end()
        run.tally(acknowledged=len(acknowledged), kept=count, segments_cleaned=(after - before) // LOG_BYTES)


def opened(
    stack: ExitStack, nursery: Nursery, store: Path, settings: dict[str, Any], rng: random.Random
) -> Child:
    child = stack.enter_context(nursery.fork())
    child.do(LIFE, path=str(store), settings=settings, seed=rng.randrange(1 << 40))
    return child


FAULT = Fault(
    "full-disk-reopen",
    "a store with a backlog is closed or killed on a full disk and opened up to five times, alone or beside a program "
    "that fills it; then it is cleaned",
    400,
    6,
    run,
    obstacle,
)
