"""Many: stores with more queues than the tables of the first step hold, or with more segments than a common limit of
descriptors.

Writers fill such a store and are killed while they do; others do it again, scan it and go on. Whoever opens it finds
everything.
"""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cystore
from tests.crash.matrix import Case, Fault, Run
from tests.support.aftermath import aftermath
from tests.support.checks import check_closed
from tests.support.processes import worker
from tests.support.processes.forks import Child, Nursery
from tests.support.processes.worker import check_kept
from tests.support.small_stores import SETTINGS

WRITERS = 2
QUEUES = 4096  # of the first step of queue slots and of bookkeeping; a case has more
SEGMENTS = 1024  # as many as the common soft limit of descriptors; a case has more
DESCRIPTORS = 64  # of each process on it
QUEUE_SETTINGS = {
    **SETTINGS,
    "mapped_file_size_commit_log_bytes": 256 * 1024,
    "mapped_file_size_consume_queue_bytes": 20 * 20,
    "max_hash_slot_num": 1500,
    "max_index_num": 20_000,
}
SEGMENT_SETTINGS = {
    **SETTINGS,
    "mapped_file_size_commit_log_bytes": 4096,
    "max_index_num": 20_000,
    "allocate_ahead_bytes": 4096 * 16,
}

# `put_to` writes one message to each queue of a range, `fill` one large message after the other; both tell through
# the pipe, for the writer may be killed at any moment.
MANY = """
import os, resource
from tests.support.processes.worker import body_of
def tell(put, topic, queue_id, key):
    os.write(out, f"{topic} {queue_id} {put.queue_offset} {key} {put.physical_offset} {put.size_bytes}\\n".encode())
def put(topic, queue_id, size):
    w._count += 1
    key = f"{w.name}.{w._count}"
    tell(w.store.put(topic, body_of(key, size), queue_id=queue_id, keys=(key,)), topic, queue_id, key)
def put_to(topic, begin, end):
    for queue_id in range(begin, end):
        put(topic, queue_id, 20)
        if w.rng.random() < 0.002:
            w.store.dispatch()
def fill(count):
    for _ in range(count):
        put("shared", w.rng.randrange(2), 3000)
        if w.rng.random() < 0.005:
            w.store.dispatch()
def low(soft):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def scanned():
    w.committed()
    return sum(1 for _ in w.store.scan())
"""


class Scene:
    """One store, and the writers that live on it until they are killed."""

    def __init__(
        self,
        nursery: Nursery,
        told: worker.Acknowledgements,
        path: Path,
        settings: dict[str, Any],
        rng: random.Random,
    ) -> None:
        self.nursery, self.told, self.path, self.settings, self.rng = nursery, told, path, settings, rng
        self.kills = 0

    def writer(self, stack: ExitStack, limit: int = 0) -> Child:
        child = stack.enter_context(self.nursery.fork())
        child.do(f"{worker.IMPORT}\n{MANY}", out=self.told.out)
        if limit:
            child.do("low(soft)", soft=limit)
        child.do(
            "w = tests.support.processes.worker.Worker(path, settings, seed)",
            path=str(self.path),
            settings=self.settings,
            seed=self.rng.randrange(1 << 40),
        )
        return child

    def lives(self, work: list[tuple[str, dict[str, Any]]], limit: int = 0) -> None:
        """Each piece of work is one writer's; all but one are killed at some moment of it, and another one does it
        again."""
        with ExitStack() as stack:
            observer = self.writer(stack, limit)
            writers = [(self.writer(stack, limit), *piece) for piece in work]
            for writer, source, names in writers:
                writer.send(source, **names)
            for writer, source, names in writers:
                self.told.wait(self.rng.randrange(1, 200))
                writer.signal(signal.SIGKILL)
                writer.kill()
                self.kills += 1
                heir = self.writer(stack, limit)
                heir.do(source, **names)
                if self.rng.random() < 0.5:
                    heir.do("w.store.close()")
                    heir.end()
            self.told.take()
            assert observer.do("scanned()") >= len(self.told.acknowledged)
            observer.do("w.goes_on(names)", names=("put_sync", "put_many", "get", "query", "flush", "stats"))
            self.told.acknowledged += observer.do("w.told()")[0]

    def ends(self, run: Run) -> None:
        self.told.take()
        with cystore.open(self.path, **self.settings) as store:
            check_kept(store, self.told.acknowledged)
        check_closed(self.path, self.settings)
        aftermath(self.path, self.settings, lambda store: check_kept(store, self.told.acknowledged))
        run.tally(acknowledged=len(self.told.acknowledged), stores=1)


def run_queues(run: Run, *, planted: bool = False) -> None:
    with worker.Acknowledgements() as told, Nursery(keep=(told.out,)) as nursery:
        for case in run.cases(worth=WRITERS):
            with run.case(case), case.in_memory() as folder:
                scene = _scene(case, nursery, told, folder, QUEUE_SETTINGS)
                share = QUEUES // WRITERS + case.rng.randrange(1, 100)
                scene.lives(
                    [("put_to(topic, 0, end)", {"topic": f"many{n}", "end": share}) for n in range(WRITERS)]
                )
                _plant(planted, told)
                with cystore.open(scene.path, read_only=True, **QUEUE_SETTINGS) as store:
                    assert store.stats()["queues"] > QUEUES
                scene.ends(run)


def run_segments(run: Run, *, planted: bool = False) -> None:
    with worker.Acknowledgements() as told, Nursery(keep=(told.out,)) as nursery:
        for case in run.cases(worth=WRITERS):
            with run.case(case), case.in_memory() as folder:
                scene = _scene(case, nursery, told, folder, SEGMENT_SETTINGS)
                share = SEGMENTS // WRITERS + case.rng.randrange(1, 50)
                scene.lives([("fill(count)", {"count": share})] * WRITERS, DESCRIPTORS)
                _plant(planted, told)
                assert len(case.shape.log_files(scene.path)) > SEGMENTS
                scene.ends(run)


def _scene(
    case: Case, nursery: Nursery, told: worker.Acknowledgements, folder: Path, settings: dict[str, Any]
) -> Scene:
    told.forget()
    case.begin(folder / "store", settings)
    return Scene(nursery, told, folder / "store", settings, case.rng)


def _plant(planted: bool, told: worker.Acknowledgements) -> None:
    """The look of a store that lost an acknowledged message."""
    if planted:
        topic, queue_id, queue_offset, *_ = told.acknowledged[-1]
        told.acknowledged.append((topic, queue_id, queue_offset + 1000, "lost", 0, 100))


MANY_QUEUES = Fault(
    "many-queues",
    f"two writers are killed while they fill a store of more than {QUEUES:,} queues; others go on",
    200,
    WRITERS,
    run_queues,
)
MANY_SEGMENTS = Fault(
    "many-segments",
    f"two writers with {DESCRIPTORS} descriptors are killed while they fill more than {SEGMENTS:,} segments; "
    "others scan and go on",
    1_000,
    WRITERS,
    run_segments,
)
