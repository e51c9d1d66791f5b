"""Goal: `cystore handover` makes workers leave a store between two tasks, so that another version can open it.
Method: a real worker with a task that runs; a process for which the worker's layout is another one; the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from celery.concurrency.thread import TaskPool
from celery.exceptions import Reject

from cystore.celery.base import pools
from cystore.celery.base.store_watch import HANDOVER_EXIT_CODE
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, Fleet, fleet_in, wait_until
from tests.celery.results.test_store_away import ready, send, waiting
from tests.support.celery import work
from tests.support.process import Failed, Process

# A process whose own layout is another one, as far as its look at the control block goes.
ANOTHER_LAYOUT = """
import cystore
from cystore.engine.inspect import control_head
control_head.FINGERPRINT += 1
"""


def unacknowledged(fleet: Fleet) -> int:
    """Messages that a worker has and did not acknowledge."""
    with fleet.app.connection_for_read() as connection:
        return int(connection.default_channel.client.hlen("unacked"))


def handover(fleet: Fleet, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cystore", "handover", str(fleet.store_path), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("away", ["exit", "wait"])
def test_a_worker_hands_its_store_over_between_two_tasks(tmp_path, away):
    with fleet_in(tmp_path, cystore_store_away=away) as fleet, Process() as newer:
        worker = fleet.start("--concurrency=1")
        ready(worker)
        fifo, marker = tmp_path / "fifo", tmp_path / "marker"
        os.mkfifo(fifo)
        running = fleet.task(work.wait_unless_redelivered).delay(str(marker), str(fifo))
        wait_until(marker.exists, "the task runs")
        close_shared()
        newer.do(ANOTHER_LAYOUT)
        with pytest.raises(Failed, match=f"cystore handover.*Attached: .*{worker.process.pid}"):
            newer.do("cystore.open(path)", path=str(fleet.store_path))

        still = handover(fleet, "--wait", "0.5")
        assert still.returncode == 1
        assert str(worker.process.pid) in still.stdout and "asked to leave" in still.stdout
        wait_until(lambda: "asks this worker to leave" in worker.log.read_text(), "the worker knows")
        send(fleet, 3)
        fifo.write_text("go on")
        assert worker.process.wait(PATIENCE_S) == HANDOVER_EXIT_CODE
        left = handover(fleet)
        assert left.returncode == 0 and "no process is attached" in left.stdout

        newer.do("store = cystore.open(path)", path=str(fleet.store_path))  # makes its own layout
        newer.do("store.close()")
        assert running.state == "SUCCESS", "the running task's result was stored"
        assert waiting(fleet) == 3


def test_a_task_that_a_pool_process_has_is_not_given_back(tmp_path):
    """Seen: a busy worker gave a task back that a process of its pool had just begun, so that it ran twice; and Celery
    waited 30 s for that process."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1")
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        wait_until(lambda: not unacknowledged(fleet), "the pool process is idle")
        (child,) = worker.children()
        os.kill(child, signal.SIGSTOP)
        result = fleet.task(work.text_of).delay(1, str(tmp_path / "runs"))
        wait_until(lambda: f"{result.id}] received" in worker.log.read_text(), "the pool has it")
        assert handover(fleet, "--wait", "0").returncode == 1
        wait_until(lambda: "asks this worker to leave" in worker.log.read_text(), "the worker knows")
        os.kill(child, signal.SIGCONT)
        assert worker.process.wait(PATIENCE_S) == HANDOVER_EXIT_CODE
        assert "could not ensure all messages were consumed" not in worker.log.read_text()
        assert (result.state, waiting(fleet)) == ("SUCCESS", 0)


class Taken:
    """A worker's request, as far as its pool and the broker have to do with it."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def on_accepted(self, pid: int, _: float) -> None:
        self.accepted.append(pid)


@pytest.mark.parametrize("first", [pools.POOL, pools.BROKER])
def test_a_thread_runs_a_task_or_its_message_goes_back(first):
    """Seen: a pool of threads ran the tasks that it had queued, though their messages had gone back to the broker."""
    pool, request = TaskPool(1), Taken()
    pools.tell_what_was_raised(pool)
    ran: list[int] = []
    ends: list[object] = []
    if first == pools.BROKER:
        assert pools.claim(request, pools.BROKER)
    pool.apply_async(ran.append, (1,), accept_callback=request.on_accepted, callback=ends.append).get()
    pool.on_stop()
    assert pools.claim(request, first)
    assert not pools.claim(request, pools.BROKER if first == pools.POOL else pools.POOL)
    if first == pools.POOL:
        assert (ran, request.accepted, ends) == ([1], [os.getpid()], [None])
    else:
        ((failed, told, _),) = ends
        assert (ran, request.accepted, failed) == ([], [], 1)
        assert isinstance(told.exception.exc, Reject)


def test_a_request_can_be_taken_back(tmp_path):
    with Process() as process:
        process.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
        command = [sys.executable, "-m", "cystore", "handover", str(tmp_path / "s")]
        asked = subprocess.run([*command, "--wait", "0"], capture_output=True, text=True, check=False)
        assert asked.returncode == 1 and str(process.pid) in asked.stdout
        assert process.do("store.asked_to_leave()") is True
        process.do("store.put('T', b'still works')")
        subprocess.run([*command, "--cancel"], check=True)
        assert process.do("store.asked_to_leave()") is False
