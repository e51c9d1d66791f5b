"""Errors: the n-th system call of one of two attached processes fails; a typed error says so, and nothing
acknowledged is lost."""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import cystore
from cystore.derived.files.offsets import read_queue_offsets
from cystore.engine.files.checkpoint import FILE_BYTES
from tests.crash.matrix import Case, Fault, Run
from tests.crash.shapes import OTHER_FOLDERS, Shape
from tests.support.aftermath import after_check
from tests.support.checks import check, check_closed
from tests.support.processes.forks import Child, Nursery
from tests.support.small_stores import SETTINGS

SOURCE = Path(__file__).with_name("fail_calls.c")
# How many of each a process makes in STEPS; measured once, so that a case depends on its own number alone.
CALLS = {
    "open": 150, "mmap": 20, "msync": 50, "fsync": 60, "fdatasync": 6, "ftruncate": 12, "fallocate": 25, "rename": 20,
    "pwrite": 5,
}  # fmt: skip
ANY, ANY_IN_STEPS, ANY_AT_ALL = "any", 300, 2000
CODES = (errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.EINTR)
ALWAYS = 1_000_000
STEPS = 40
MEMORY = "/dev/shm"

# `work` gives the puts that were acknowledged, and what was raised; each step is tried whatever happened before.
WORKER = """
import cystore, ctypes, logging, os, random
logging.disable()  # what fails is told by the errors
library = ctypes.CDLL(None)
library.cystore_failed.restype = ctypes.c_char_p
rng = random.Random(seed)
acknowledged, raised, count, store = [], [], 0, None
def arm(**names):
    library.cystore_count_anew()
    for name, value in names.items():
        os.environ["CYSTORE_FAIL_" + name] = str(value)
def disarm():
    os.environ.pop("CYSTORE_FAIL_CALL", None)
def failed():
    return library.cystore_failed().decode()
def attempt(what):
    try:
        return what()
    except Exception as error:
        names_path = getattr(error, "path", None) is not None
        raised.append([type(error).__name__, str(error), isinstance(error, cystore.StoreError), names_path])
def open_store():
    global store
    store = cystore.open(path, **settings)
def put(flush):
    global count
    count += 1
    key, topic, queue_id = f"{seed}.{count}", f"T{rng.randrange(5)}" if rng.random() < 0.2 else "shared", count % 2
    r = store.put(topic, b"x" * rng.randrange(3000), queue_id=queue_id, keys=(key,), flush=flush)
    acknowledged.append([topic, queue_id, r.queue_offset, key])
def put_many():
    global count
    count += 1
    keys = [f"{seed}.{count}.{n}" for n in range(3)]
    batch = [cystore.Message(topic="shared", body=b"y" * 500, keys=(key,)) for key in keys]
    results = store.put_many(batch, flush="sync")
    acknowledged.extend(["shared", 0, r.queue_offset, key] for r, key in zip(results, keys))
def look():
    got = store.get("shared", 0, 0)
    if got.messages:
        assert store.query("shared", got.messages[0].keys[0])
STEPS = [lambda: put("sync"), lambda: put("async"), lambda: put("async"), put_many, lambda: store.flush(),
         lambda: store.dispatch(), look]
def work(steps):
    for _ in range(steps):
        attempt(rng.choice(STEPS))
def told():
    return [acknowledged, raised]
def refused():
    raised.clear()
    attempt(lambda: put("sync"))
    attempt(lambda: put("async"))
    attempt(put_many)
    return [kind for kind, *_ in raised]
def poisoned():
    from cystore.engine.log.flush import SYNC_FAILED
    return bool(store._parts.control.flags & SYNC_FAILED)
"""


def obstacle() -> str:
    return "" if shutil.which("cc") else "there is no C compiler (cc)"


def run(run: Run) -> None:
    with ExitStack() as machine:
        nursery = None
        for case in run.cases():
            with run.case(case):
                if nursery is None:
                    library = Path(mkdtemp(dir=case.folder.parent)) / "fail_calls.so"
                    subprocess.run(
                        ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True
                    )
                    environment = {**os.environ, "LD_PRELOAD": str(library)}
                    nursery = machine.enter_context(Nursery(environment))
                fail_once(case, nursery, run)


def fail_once(case: Case, nursery: Nursery, run: Run) -> None:
    # In memory where that can be: syncs are not what should take time here.
    folder = TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else case.folder)
    with folder as name:
        path = Path(name) / "store"
        try:
            case.begin(path, SETTINGS)
            fail_at(case, path, nursery, run)
        except Exception:
            if path.exists():
                shutil.copytree(path, case.folder / "store")
            raise


def fail_at(case: Case, path: Path, nursery: Nursery, run: Run) -> None:
    rng = case.rng
    with ExitStack() as stack:
        broken, other = (worker(stack, nursery, path, rng.randrange(1 << 40), rng) for _ in range(2))
        before = rng.choice(("nobody", "a crash", "the other"))
        if before == "a crash":
            dead = worker(stack, nursery, path, rng.randrange(1 << 40), rng)
            dead.do("open_store(); work(30)")
            acknowledged = dead.do("told()")[0]
            dead.kill()
        else:
            acknowledged = []
        if before == "the other":
            other.do("open_store()")
        call = ANY if case.number % 2 else rng.choice(list(CALLS))
        at, steps = int(math.exp(rng.uniform(0, math.log(CALLS.get(call, ANY_IN_STEPS) + 1)))), STEPS
        if rng.random() < 0.1:  # so long that there are thousands
            call, at, steps = ANY, rng.randrange(1, ANY_AT_ALL + 1), 8 * STEPS
        times = rng.choice((1, 1, 1, ALWAYS))
        code = rng.choice(CODES)
        if code == errno.EINTR:
            times = 1  # the interpreter makes an interrupted call again by itself, without end
        broken.do(
            "arm(**how)",
            how={"UNDER": under(path, case.shape), "CALL": call, "AT": at, "TIMES": times, "ERRNO": code},
        )
        what = f"{errno.errorcode[code]} at {call} {at}, {times} times, {before} before"
        try:
            opening = broken.do("attempt(open_store); store is not None")
            if not opening:
                assert broken.do("failed()"), broken.do("told()")
                assert broken.do("raised[0][2:]") == [True, True], broken.do("raised")
                broken.do("raised.clear(); disarm(); open_store()")
            if before != "the other":
                other.do("open_store()")
            other.send("work(20)")
            broken.do("work(steps)", steps=steps)
            other.answer()
            met = broken.do("failed()")
            told = read_only(broken, other, opening and must_stop(met, code, case.shape))
            done = [one.do("told()") for one in (broken, other)]
            for mine, raised in done:
                acknowledged += mine
                for kind, text, ours, has_path in raised:
                    assert ours, f"{kind}: {text}"
                    assert has_path, f"no path: {kind}: {text}"
            if rng.random() < 0.7:
                broken.do("attempt(store.close); told()")
                assert all(ours for _, _, ours, _ in broken.do("raised"))
                other.do("disarm(); attempt(store.close)")
            else:
                broken.kill()
                other.kill()
        except Exception as error:
            error.add_note(what)
            raise
    try:
        read_queue_offsets(path)
        assert (path / "checkpoint").stat().st_size == FILE_BYTES
        with cystore.open(path, **SETTINGS) as store:
            run.tally(acknowledged=check(store, acknowledged), calls_failed=bool(met), told_to_the_other=told)
        check_closed(path, SETTINGS)
        after_check(path, SETTINGS, acknowledged)
    except Exception as error:
        error.add_note(f"{what}: {met}")
        raise


def under(path: Path, shape: Shape) -> str:
    """The folder below which calls fail."""
    return str(path.parent if shape.folders else path)


def must_stop(met: str, code: int, shape: Shape) -> bool:
    """Whether what failed ends all writing: a sync of what is in use, and EIO of a sync of what an append needs. A
    file that had no name yet is made again, from nothing. A sync that a signal interrupted did not run."""
    call, _, path = met.partition(" ")
    if code == errno.EINTR:
        return False
    if call in ("msync", "fdatasync"):
        return True
    broken_disk = code == errno.EIO and call == "fsync"
    log_folder = path.partition("/store/")[2].startswith("commitlog")
    return broken_disk and (log_folder or (shape.folders and Path(path).name in OTHER_FOLDERS))


def read_only(broken: Child, other: Child, stopped: bool) -> bool:
    """After the disk failed every put in every process is refused, and reads go on; else all are accepted. Gives
    whether the process that no call failed in was told while it wrote."""
    broken.do("disarm()")
    poisoned = broken.do("poisoned()")
    assert poisoned or not stopped, "the disk failed and the store goes on"
    raised = [kind for one in (broken, other) for kind, *_ in one.do("raised")]
    assert poisoned or "FlushFailedError" not in raised, raised
    for one in (broken, other):
        assert one.do("kept = list(raised); refused()") == ["FlushFailedError"] * 3 * poisoned
        one.do("raised[:] = kept; look()")
    return any(kind == "FlushFailedError" for kind, *_ in other.do("raised"))


def worker(stack: ExitStack, nursery: Nursery, path: Path, seed: int, rng: Any) -> Child:
    child = stack.enter_context(nursery.fork())
    settings = {**SETTINGS, "services": rng.choice(("none", ["flush", "allocate"], "all"))}
    child.do(WORKER, path=str(path), settings=settings, seed=seed)
    return child


FAULT = Fault(
    "errors",
    "EIO, ENOSPC, EDQUOT, ENOMEM, EMFILE or EINTR at the n-th open, mmap, sync, ftruncate, fallocate, rename "
    "or pwrite of one of two",
    2_000,
    12,
    run,
    obstacle,
)
