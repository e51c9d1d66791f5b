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
from cystore.engine.inspect.control_head import attached_processes, read_head
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
        for _ in range(2):  # in use, and closed
            again = subprocess.run([*command, "--cancel"], capture_output=True, text=True, check=False)
            assert again.returncode == 1 and "there is no request to cancel" in again.stderr
            process.do("store.close()")


def first_line(fleet: Fleet, command: str) -> str:
    """Of `cystore info`, or of `celery cystore status`."""
    commands = {
        "info": ["-m", "cystore", "info", str(fleet.store_path)],
        "status": ["-m", "celery", "-A", "tests.support.celery.work:app", "cystore", "status"],
    }
    environment = {**os.environ, **fleet.environment}
    done = subprocess.run(
        [sys.executable, *commands[command]], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[0]


def test_a_request_that_beat_and_a_web_process_do_not_meet_ends(tmp_path):
    """Seen: the request stayed when the command had ended, and every worker that the supervisor started was asked to
    leave at once, for ever."""
    with fleet_in(tmp_path) as fleet, Process() as web:
        worker = fleet.start("--concurrency=1")
        beat = fleet.start_beat()
        ready(worker)
        web.do("import cystore; store = cystore.open(path)", path=str(fleet.store_path))
        wait_until(lambda: attached(fleet) >= {beat.process.pid, web.pid}, "beat has the store open")
        close_shared()

        left = handover(fleet, "--wait", "8")
        assert worker.process.wait(PATIENCE_S) == HANDOVER_EXIT_CODE
        assert left.returncode == 1
        for pid in (beat.process.pid, web.pid):
            assert str(pid) in left.stdout
        assert "no process with another layout can write" in left.stdout
        assert "The request has ended" in left.stdout and "--keep" in left.stdout
        assert web.do("store.asked_to_leave()") is False
        assert "HANDOVER" not in first_line(fleet, "info")

        later = fleet.start("--concurrency=1")
        ready(later)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        assert "asks this worker to leave" not in later.log.read_text()


def test_a_request_that_is_kept_is_shown_first_and_is_not_for_later_workers(tmp_path):
    with fleet_in(tmp_path) as fleet, Process() as web:
        web.do("import cystore; store = cystore.open(path)", path=str(fleet.store_path))
        worker = fleet.start("--concurrency=1")
        ready(worker)
        close_shared()
        kept = handover(fleet, "--wait", "1", "--keep")
        assert kept.returncode == 1 and f"cystore handover {fleet.store_path} --cancel" in kept.stdout
        assert worker.process.wait(PATIENCE_S) == HANDOVER_EXIT_CODE
        assert web.do("store.asked_to_leave()") is True
        for command in ("info", "status"):
            assert first_line(fleet, command).startswith("HANDOVER: the processes that were attached")

        later = fleet.start("--concurrency=1")  # by the supervisor, with the same layout
        ready(later)
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        with Process() as newer:
            newer.do("import cystore; store = cystore.open(path)", path=str(fleet.store_path))
            assert newer.do("store.asked_to_leave()") is False
        cancelled = handover(fleet, "--cancel")
        assert cancelled.returncode == 0 and "cancelled" in cancelled.stdout
        assert web.do("store.asked_to_leave()") is False
        assert first_line(fleet, "info").startswith(str(fleet.store_path))
        assert "asks this worker to leave" not in later.log.read_text()


def test_a_request_is_met_when_those_before_it_have_left(tmp_path):
    """The supervisor starts the worker again, with the same layout: that one is not waited for."""
    path = tmp_path / "s"
    with Process() as old, Process() as later:
        old.do("import cystore; store = cystore.open(path)", path=str(path))
        command = [sys.executable, "-m", "cystore", "handover", str(path), "--wait", "80"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asks:
            wait_until(lambda: old.do("store.asked_to_leave()"), "it is asked")
            later.do("import cystore; store = cystore.open(path)", path=str(path))
            old.do("store.close()")
            text, _ = asks.communicate(timeout=PATIENCE_S)
        assert asks.returncode == 0
        assert "all processes have left" in text and str(later.pid) in text and str(old.pid) not in text
        assert later.do("store.asked_to_leave()") is False
        assert not read_head(path).handover


def attached(fleet: Fleet) -> set[int]:
    """The processes that have the store open."""
    return (
        {process.pid for process in attached_processes(fleet.store_path)}
        if fleet.store_path.exists()
        else set()
    )
