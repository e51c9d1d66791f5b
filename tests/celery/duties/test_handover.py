"""Goal: `cystore handover` makes workers leave a store between two tasks, so that another version can open it.
Method: a real worker with a task that runs; a process for which the worker's layout is another one; the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cystore.celery.base.store_watch import HANDOVER_EXIT_CODE
from cystore.celery.stores import close_shared
from tests.celery import work
from tests.celery.conftest import PATIENCE_S, Fleet, fleet_in, wait_until
from tests.celery.results.test_store_away import ready, send, waiting
from tests.support.process import Failed, Process

# A process whose own layout is another one, as far as its look at the control block goes.
ANOTHER_LAYOUT = """
import cystore
from cystore.engine.inspect import control_head
control_head.FINGERPRINT += 1
"""


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
