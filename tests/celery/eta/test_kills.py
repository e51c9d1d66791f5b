"""Goal: no kill loses a task that waits in the store. Method: real workers are killed, main process and children at
once, at random moments while they send tasks that become due; the seed is printed. They take no task: Redis does not
get back a task that a worker has just taken when it is killed, with any ETA."""

from __future__ import annotations

import threading

import pytest

from cystore.celery.eta import keeping, sending, waiting
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.support.celery import work

TASKS = 60


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_every_task_runs_however_many_workers_are_killed(tmp_path, rng, kills):
    with fleet_in(tmp_path, **{keeping.SETTING: 0}) as fleet:
        span_s = 2.0 * kills
        results = [
            fleet.task(work.text_of).apply_async(
                (1, str(tmp_path / f"runs{number}")), countdown=1 + rng.random() * span_s
            )
            for number in range(TASKS)
        ]
        assert len(list(waiting.waiting(fleet.backend.store))) > TASKS / 2
        for _ in range(kills):
            worker = fleet.start("--concurrency=1", "--queues", "empty")
            wait_until(lambda: "ready." in worker.log.read_text(), "the worker is ready")  # noqa: B023
            threading.Event().wait(rng.random() * 2)  # the moment of the kill is the test's input
            worker.kill()
        fleet.start("--concurrency=1")
        for result in results:
            assert len(result.get(timeout=PATIENCE_S)) == 1
        assert all((tmp_path / f"runs{number}").exists() for number in range(TASKS))
        store = fleet.backend.store
        wait_until(lambda: not sending.is_due(store), "all were sent")
        assert not list(waiting.waiting(store))
