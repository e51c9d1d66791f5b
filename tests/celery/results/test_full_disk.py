"""Goal: a worker whose store's disk is full says so in a line, loses no task, and continues when there is space.
Method: real workers in every pool; the store is told to keep more space free than any disk has."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from celery import Celery

from cystore import StoreFullError
from cystore.clock import monotonic_s
from tests.celery.conftest import PATIENCE_S, WORKER, Fleet, fleet_in, wait_until
from tests.celery.results.test_store_away import send, waiting
from tests.support.celery import work
from tests.support.disks.small_disk import on_small_disk

TASKS = 20
# What a worker says of its work, and late of its start: a pool of greenlets connects beside its first tasks.
USUAL = ("] received", "] succeeded", "] pidbox: Connected to", "] Connected to", " ready.")


def fill_the_disk(fleet: Fleet) -> None:
    fleet.backend.store.configure(min_free_bytes=1 << 50)
    fleet.backend.store.clean_due()
    with pytest.raises(StoreFullError):
        fleet.backend.store.put("T", b"")


def make_space(fleet: Fleet) -> None:
    fleet.backend.store.configure(min_free_bytes=0)
    fleet.backend.store.clean_due()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_full_disk_is_told_in_one_line_and_no_task_is_lost(tmp_path, pool):
    """Seen: a hundred lines of tracebacks for each task; a pool of threads stood still for ever, a solo worker ended,
    greenlets printed tracebacks, and the results were lost."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=2", pool=pool)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        marker, fifo = tmp_path / "marker", tmp_path / "fifo"
        os.mkfifo(fifo)
        running = None
        if pool in ("prefork", "threads"):  # a task of the others would keep the worker from looking
            running = fleet.task(work.wait_unless_redelivered).delay(str(marker), str(fifo))
            # Its state is the last that it writes: a full disk would end the task there.
            wait_until(lambda: running.state == work.MARKED, "a task runs")
        before, began_s = len(worker.log.read_text().splitlines()), monotonic_s()
        fill_the_disk(fleet)
        sender = Celery(broker=fleet.environment[work.BROKER], backend="disabled://")
        ids = [sender.send_task(work.add.name, (number, 1), queue=work.QUEUE).id for number in range(TASKS)]
        wait_until(lambda: "takes no more tasks" in worker.log.read_text(), "the worker says so")
        if running is not None:
            wait_until(lambda: says(fifo), "its task goes on")
        wait_until(lambda: waiting(fleet) == TASKS + (running is not None), "all are the broker's")
        assert worker.process.poll() is None
        make_space(fleet)
        wait_until(lambda: "takes tasks again" in worker.log.read_text(), "the worker continues")
        results = [fleet.app.AsyncResult(task_id) for task_id in ids]
        assert [result.get(timeout=PATIENCE_S) for result in results] == list(range(1, TASKS + 1))
        if running is not None:
            assert running.get(timeout=PATIENCE_S) == "second time"
        told = worker.log.read_text().splitlines()[before:]
        others = [line for line in told if not any(usual in line for usual in USUAL)]
        # It stops, an event or state was refused, events go on, it takes tasks again. Each at most once a minute.
        kinds = Counter(re.sub(r"\d+", "N", line.partition("] ")[2]) for line in others)
        assert len(kinds) <= 4, "\n".join(others)
        assert max(kinds.values()) <= 1 + (monotonic_s() - began_s) // 60, "\n".join(others)
        assert not [line for line in others if "Traceback" in line]


def says(fifo: Path) -> bool:
    """Ends the wait of a FIFO's reader."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(descriptor, b"go on")
    os.close(descriptor)
    return True


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_result_that_is_lost_is_told(tmp_path, pool):
    """The task's message was acknowledged before it began: nothing can bring it back."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1", pool=pool)
        store = str(fleet.store_path)
        told = fleet.task(work.fills_its_disk).delay(store)
        wait_until(lambda: f"the state of task {told.id} is lost" in worker.log.read_text(), "it is told")
        make_space(fleet)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        assert worker.process.poll() is None


START_ON_A_FULL_DISK = """
import os, subprocess, sys
from celery import Celery
from cystore.celery.stores import close_shared
disk, broker, *command = sys.argv[1:]
url = f"cystore://{disk}/store?allow_any_owner=true"
Celery(backend=url).backend.store.put("T", b"")
close_shared()
try:
    with open(f"{disk}/rest", "wb", buffering=0) as rest:
        while rest.write(bytes(4096)):
            pass
except OSError:
    pass
there = {**os.environ, "%s": broker, "%s": url}
worker = subprocess.run([sys.executable, "-m", "celery", *command], env=there, capture_output=True, text=True)
print(worker.returncode, worker.stderr)
"""


def test_a_worker_that_starts_on_a_full_disk_ends_and_takes_no_task(tmp_path):
    """It has opened no store yet that could wait for space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with fleet_in(tmp_path) as fleet:
        send(fleet, 3)
        command = ["-A", "tests.support.celery.work", *WORKER, "--concurrency=1"]
        script = START_ON_A_FULL_DISK % (work.BROKER, work.BACKEND)
        told = on_small_disk("48m", disk, script, fleet.environment[work.BROKER], *command)
        assert told.startswith("1 "), told
        assert (
            f"'cystore://{disk}/store?allow_any_owner=true' cannot be used: no space left on the disk" in told
        )
        assert waiting(fleet) == 3
