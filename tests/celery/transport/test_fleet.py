"""Goal: a fleet without any server: tasks, chords, remote control and duties on one store, and no task lost or run
again whoever is killed. Method: real workers on a store that is their broker and their result backend."""

from __future__ import annotations

import threading

import pytest
from celery import chord, states

from cystore.celery.base import events
from cystore.celery.eta import keeping
from tests.celery.conftest import PATIENCE_S, Fleet, wait_until
from tests.crash.episodes import armed
from tests.support.celery import work


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path, f"cystore://{tmp_path}/store", settings={keeping.SETTING: 0})
    try:
        yield fleet
    finally:
        fleet.stop()


def ends_of(fleet, results) -> list[list[str]]:
    """The last states of each task, oldest first: one, unless it ran again after it was finished."""
    backend = fleet.backend
    return [
        [one.tags for one in backend.all_states(result.id) if one.tags in states.READY_STATES]
        for result in results
    ]


def test_a_fleet_without_a_server(fleet):
    worker = fleet.start("--concurrency=2")
    add = fleet.task(work.add)
    results = [add.delay(number, 1) for number in range(30)]
    assert [result.get(timeout=PATIENCE_S) for result in results] == list(range(1, 31))
    assert chord([add.s(number, number) for number in range(10)])(fleet.task(work.total).s()).get(
        timeout=PATIENCE_S
    ) == sum(2 * number for number in range(10))
    assert add.apply_async((1, 2), countdown=1).get(timeout=PATIENCE_S) == 3
    control = fleet.app.control
    wait_until(lambda: control.ping(timeout=1), "the worker answers")
    assert work.QUEUE in {one["name"] for one in next(iter(control.inspect().active_queues().values()))}
    assert worker.stop() == 0
    store = fleet.backend.store
    names = {message.tags for message in store.query(events.EVENTS, results[0].id)}
    assert names == {events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED}


def test_a_killed_worker_loses_no_task_and_a_slow_one_keeps_its_own(fleet, tmp_path):
    go = tmp_path / "go"

    def send(name: str):
        return fleet.task(work.waits_for_a_word).delay(str(tmp_path / name), str(go))

    slow = fleet.start("--concurrency=1")
    held = send("held")
    wait_until((tmp_path / "held").exists, "the slow task runs")
    killed = fleet.start("--concurrency=1")
    taken = send("taken")
    wait_until((tmp_path / "taken").exists, "the other task runs")
    killed.kill()
    last = fleet.start("--concurrency=1")
    wait_until(lambda: f"[{taken.id}] received" in last.log.read_text(), "it is taken over")
    go.write_text("go")
    assert held.get(timeout=PATIENCE_S) == taken.get(timeout=PATIENCE_S) == "go"
    assert slow.log.read_text().count(f"[{held.id}] received") == 1
    assert held.id not in last.log.read_text()


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_no_kill_loses_a_task_or_runs_an_acknowledged_one_again(fleet, tmp_path, rng, kills):
    results, workers = [], [fleet.start("--concurrency=2") for _ in range(2)]
    wait_until(lambda: all("ready." in worker.log.read_text() for worker in workers), "the workers are ready")
    for _ in range(kills):
        for _ in range(rng.randrange(40, 120)):
            results.append(fleet.task(work.text_of).delay(1, str(tmp_path / f"runs{len(results)}")))
        threading.Event().wait(rng.random() / 2)  # the moment of the kill is the test's input
        victim = rng.randrange(2)
        workers[victim].kill()
        workers[victim] = fleet.start("--concurrency=2")
    for result in results:
        assert len(result.get(timeout=PATIENCE_S)) == 1
    runs = [(tmp_path / f"runs{number}").read_text().count("ran") for number in range(len(results))]
    assert min(runs) == 1
    assert ends_of(fleet, results) == [[states.SUCCESS]] * len(results), "no finished task ran again"
    again = sum(runs) - len(runs)
    assert again <= 2 * kills, "only what its two children had begun, when a worker was killed, runs again"


@pytest.mark.parametrize("place", ["claims.marked", "claims.settled_together"])
def test_a_pool_process_is_killed_beside_the_result(fleet, tmp_path, build_environment, place):
    """Before the result is stored the task runs again; behind it, never."""
    each = 3  # every process is killed at its third task
    worker = fleet.start("--concurrency=1", **armed(build_environment("failpoints"), place, each))
    text_of = fleet.task(work.text_of)
    results = [text_of.delay(1, str(tmp_path / f"runs{number}")) for number in range(3 * each)]
    for result in results:
        assert result.get(timeout=PATIENCE_S) == "x"
    assert "exited prematurely" in worker.log.read_text()
    runs = [(tmp_path / f"runs{number}").read_text().count("ran") for number in range(len(results))]
    assert (sum(runs) > len(runs)) is (place == "claims.marked")
    assert ends_of(fleet, results) == [[states.SUCCESS]] * len(results)
