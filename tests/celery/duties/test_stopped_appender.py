"""Goal: a process that stands still inside the append lock takes no event loop with it. Method: such a process,
stopped for real, and a worker whose main process has events to log meanwhile."""

from __future__ import annotations

import logging
import os
import re

import pytest
from celery import Celery, current_app, states

from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.lifecycle import recorder
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.support.celery import work
from tests.support.process import Process

PATIENT = (
    "?os_page_cache_busy_timeout_ms=3600000"  # who stores a result waits for longer than this test takes
)
HOLD = "import cystore; store = cystore.open(path); turn = store._attached().control.held('append'); turn.__enter__()"
LET_GO = "turn.__exit__(None, None, None)"


@pytest.fixture
def fleet(tmp_path):
    with fleet_in(tmp_path, PATIENT) as fleet:
        yield fleet


def test_the_main_process_of_a_worker_answers_while_a_stopped_process_has_the_append_lock(fleet):
    fleet.app.conf.cystore_lifecycle = False  # this publisher waits for nothing
    worker = fleet.start("--concurrency=2")
    add = fleet.task(work.add)
    assert add.delay(1, 1).get(timeout=PATIENCE_S) == 2
    store = fleet.backend.store
    with Process() as holder:
        holder.do(HOLD, path=str(fleet.store_path))
        holder.stop()
        results = [add.delay(number, 0) for number in range(6)]
        wait_until(
            lambda: all(f"{result.id}] received" in worker.log.read_text() for result in results[:2]), "taken"
        )
        assert fleet.app.control.ping(timeout=PATIENCE_S, limit=1), "the worker's main process answers"
        told = r"ForkPoolWorker-\d+\] .* waiting for the append lock for 5 s"
        wait_until(lambda: re.search(told, worker.log.read_text()), "a pool process waits for longer")
        assert not any(result.ready() for result in results)
        assert worker.log.read_text().count("cannot log events of tasks") == 1
        holder.go_on()
        holder.do(LET_GO)
        assert [result.get(timeout=PATIENCE_S) for result in results] == list(range(6))

    def goes_on() -> bool:
        last = add.delay(0, 0)
        last.get(timeout=PATIENCE_S)
        told = [event.event for event in history.events(store, task_id=last.id)]
        return events.RECEIVED in told

    wait_until(goes_on, "the log continues")
    # On a busy machine the lock may be taken for too long once more.
    told = re.findall("cannot log events of tasks|the lifecycle log works again", worker.log.read_text())
    assert told == ["cannot log events of tasks", "the lifecycle log works again"] * (len(told) // 2)
    for result in results:
        told = [event.event for event in history.events(store, task_id=result.id)]
        assert events.STARTED in told and events.SUCCEEDED in told, (
            "a pool process waits as long as for the result"
        )


def test_a_worker_answers_while_what_its_main_process_stores_has_to_wait(fleet, tmp_path):
    worker = fleet.start("--concurrency=1")
    waits, add = fleet.task(work.wait_unless_redelivered), fleet.task(work.add)
    os.mkfifo(tmp_path / "fifo")
    running = waits.delay(str(tmp_path / "marker"), str(tmp_path / "fifo"))
    wait_until(lambda: running.state == work.MARKED, "the task runs")
    fleet.app.conf.cystore_lifecycle = False
    with Process() as holder:
        holder.do(HOLD, path=str(fleet.store_path))
        holder.stop()
        expired = [add.apply_async((number, 0), expires=-1) for number in range(5)]
        running.revoke(terminate=True)
        goes_on = "the worker continues; not stored yet"
        wait_until(lambda: goes_on in worker.log.read_text(), "it does not wait")
        wait_until(lambda: worker.log.read_text().count("Discarding revoked task") >= 5, "nor for the others")
        assert fleet.app.control.ping(timeout=PATIENCE_S, limit=1), "the worker's main process answers"
        assert running.state == work.MARKED
        assert worker.log.read_text().count(goes_on) == 1
        holder.go_on()
        holder.do(LET_GO)
    wait_until(lambda: running.state == states.REVOKED, "stored at last")
    wait_until(lambda: all(result.state == states.REVOKED for result in expired), "and the others")
    assert add.delay(1, 1).get(timeout=PATIENCE_S) == 2
    assert worker.stop() == 0


def test_a_publisher_goes_on_while_a_stopped_process_has_the_append_lock(request, url, tmp_path, caplog):
    app = Celery("publisher", broker="memory://", backend=url + PATIENT, set_as_current=False)
    before = current_app._get_current_object()
    app.set_current()  # what a process sends goes to the log of its current app
    request.addfinalizer(before.set_current)
    caplog.set_level(logging.WARNING)
    assert app.backend.store.wrote_position >= 0
    kept = recorder.log_of(app)
    with Process() as holder:
        holder.do(HOLD, path=str(tmp_path / "store"))
        holder.stop()
        for _ in range(3):
            app.send_task("shop.charge", ignore_result=True)
        holder.go_on()
        holder.do(LET_GO)
    assert kept.lost == 3
    assert caplog.text.count("cannot log events of tasks") == 1
