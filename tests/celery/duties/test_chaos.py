"""Goal: results that were handed out stay, whatever is killed when. Method: SIGKILL again and again, for pool
processes and whole workers at random, under load; in the end a store that nobody has open is read back."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import states
from celery.exceptions import TimeoutError as ResultTimeoutError
from celery.result import AsyncResult, ResultSet

import cystore
from cystore.celery.base import records
from cystore.celery.base.duty_leases import redis_of
from cystore.celery.stores import close_shared
from tests.celery.conftest import Fleet, Worker
from tests.support.celery import work

QUIET_S = 5
LIMIT_S = 240


def pool_processes(worker: Worker) -> list[int]:
    pid = worker.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_something(fleet: Fleet, workers: list[Worker], rng: random.Random) -> None:
    victim = rng.randrange(len(workers))
    children = pool_processes(workers[victim])
    if children and rng.random() < 0.6:
        os.kill(rng.choice(children), signal.SIGKILL)
    else:
        workers[victim].kill()
        workers[victim] = fleet.start("--concurrency=2", **work.SOON)


def collect(fleet: Fleet, ids: dict[str, int], metas: dict[str, dict]) -> Iterator[int]:
    """Takes results until all are there or QUIET_S are over; yields how many there are."""
    waiting = [AsyncResult(task_id, app=fleet.app) for task_id in ids if task_id not in metas]
    for task_id, meta in ResultSet(waiting, app=fleet.app).iter_native(timeout=QUIET_S):
        metas[task_id] = meta
        yield len(metas)


@pytest.mark.parametrize(
    ("tasks", "kill_every"), [(300, 75), pytest.param(6_000, 250, marks=pytest.mark.slow)]
)
def test_nothing_handed_out_is_lost(fresh_fleet, rng, tasks, kill_every):
    fleet, metas = fresh_fleet, {}
    workers = [fleet.start("--concurrency=2", **work.SOON) for _ in range(2)]
    add = fleet.task(work.add)
    ids = {add.delay(number, 1).id: number for number in range(tasks)}
    client = redis_of(fleet.app)
    for _ in range(LIMIT_S // QUIET_S):
        try:
            for count in collect(fleet, ids, metas):
                if count % kill_every == 0 and count < tasks:
                    kill_something(fleet, workers, rng)
            break
        except ResultTimeoutError:
            if client.llen(work.QUEUE) or client.hlen("unacked"):
                continue
            # A message that Redis had given to a worker which was killed before it noted that is lost: not by the
            # store.
            for task_id in ids.keys() - metas.keys():
                add.apply_async((ids[task_id], 1), task_id=task_id)
    assert metas.keys() == ids.keys()
    wrong = {task_id: meta for task_id, meta in metas.items() if meta["result"] != ids[task_id] + 1}
    assert not wrong
    fleet.stop()
    close_shared()

    with cystore.open(fleet.store_path) as store:
        for task_id, number in ids.items():
            found = records.fold(records.records_of(store, records.RESULTS, task_id))
            assert found.tags == states.SUCCESS
            assert json.loads(bytes(found.body))["result"] == number + 1
        queues = store.topics()[records.RESULTS]
        scanned = [m for m in store.scan() if m.topic == records.RESULTS]
        for queue_id, bounds in queues.items():
            offsets = [m.queue_offset for m in scanned if m.queue_id == queue_id]
            assert offsets == list(range(*bounds))
