"""Goal: a store is cleaned, its chords end and its delayed messages come, without anything installed. Method: real
workers on stores whose clock is hours ahead of the records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from celery import Celery, chord

from cystore.celery.duties import duty_runs, main_process
from cystore.celery.stores import ANY_HOUR, Location, close_shared
from cystore.services.duty_table import Outcome
from tests.celery.conftest import PATIENCE_S, Fleet, fleet_in, wait_until
from tests.support.celery import work
from tests.support.celery.servers import redis_named_by_host
from tests.support.clock import turn

HOUR_MS = 3_600_000
SMALL = "mapped_file_size_commit_log_bytes=65536&mapped_file_size_consume_queue_bytes=2000&allocate_ahead_bytes=65536"


def fill(url: str) -> None:
    """600 results; the store is closed again."""
    app = Celery("long ago", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_lifecycle=False, result_expires=3600)
    for number in range(600):
        app.backend.store_result(f"id-{number}", "x" * 100, "SUCCESS")
    close_shared()


def segments(path: Path) -> int:
    return len(list((path / "commitlog").glob("0*")))


def test_a_worker_that_installed_nothing_cleans_its_store(tmp_path):
    """Seen: without `tasks.install` nothing was ever removed."""
    with fleet_in(tmp_path, f"?{SMALL}", result_expires=3600) as fleet:
        fill(fleet.environment[work.BACKEND])
        before = segments(fleet.store_path)
        worker = fleet.start("--concurrency=1", pool="solo", **{work.CLOCK_AHEAD_MS: str(3 * HOUR_MS)})
        wait_until(lambda: segments(fleet.store_path) < before - 1, "expired segments are gone")
        told = worker.log.read_text()
        assert "the main process of one of its workers cleans it" in told
        assert "not cleaned yet" in told
        noted = fleet.backend.store.duties
        wait_until(lambda: noted.last("clean_expired").outcome is Outcome.DONE, "the worker noted that")
        assert noted.last("clean_expired").pid == worker.process.pid
        status = [sys.executable, "-m", "celery", "-A", "tests.support.celery.work", "cystore", "status"]
        environment = {**os.environ, **fleet.environment}
        done = subprocess.run(status, env=environment, capture_output=True, text=True, check=True)
        assert f"by process {worker.process.pid} (" in done.stdout
        done = subprocess.run(
            [*status, "--json"], env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["store"]["duties"]["clean_expired"]["outcome"] == "done"


def test_a_worker_that_installed_nothing_delivers_delayed_messages(tmp_path):
    with fleet_in(tmp_path) as fleet:
        fleet.backend.store.put("later", b"x", delay_level=1)
        fleet.start("--concurrency=1", pool="solo")
        assert fleet.backend.store.wait("later", 0, 0, PATIENCE_S)


def test_a_worker_that_installed_nothing_ends_a_chord_whose_claim_was_lost(tmp_path):
    """The first worker dies with the claim in its hand; the second one's main process finds the chord."""
    died = tmp_path / "died"
    with fleet_in(tmp_path) as fleet:
        deadly = {
            work.DIE_IN: "cystore.celery.chords.chord_steps:Chords._end",
            work.DIED: str(died),
            work.CLAIM_S: "1",
        }
        fleet.start("--concurrency=1", **deadly)
        result = chord([fleet.task(work.add).s(1, 1)])(fleet.task(work.total).s())
        assert result.get(timeout=PATIENCE_S) == 2
        assert died.exists()


def keeper_of(app: Celery) -> main_process.Keeper:
    keeper = main_process.Keeper(app, app.backend.store, "w@here", ("worker",), ticks=False)
    keeper._began -= 3600
    return keeper


def test_one_process_of_a_store_does_it(url):
    app = Celery("one", broker="memory://", backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    first, second = keeper_of(app), keeper_of(app)
    assert first.run_once().done == 3
    assert second.run_once().done == 0, "somebody did it a moment ago"
    token = app.backend.store.duties.acquire("clean_expired", 60_000)
    assert token == 2, "the lease was given back"
    assert {name for name in duty_runs.ALL if app.backend.store.duties.last(name).runs} == {
        "clean_expired", "deliver_delayed", "chord_sweep",
    }  # fmt: skip


def test_cleanup_of_the_backend_cleans(url, monkeypatch):
    url += f"?{SMALL}"
    fill(url)
    turn(monkeypatch, 3 * HOUR_MS)
    app = Celery("cleanup", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, result_expires=3600)
    path = app.backend.store.path
    before = segments(path)
    app.backend.cleanup()
    assert segments(path) < before - 1


def test_celerys_own_cleanup_task_cleans(tmp_path):
    """A worker of a store that is not to be cleaned at this hour; the task cleans at any."""
    hour = (datetime.now().hour + 12) % 24
    options = f"?{SMALL}&delete_when={hour:02}&disk_max_used_space_ratio=100"
    with fleet_in(tmp_path, options, result_expires=3600) as fleet:
        fill(fleet.environment[work.BACKEND])
        oldest = fleet.store_path / "commitlog" / ("0" * 20)
        assert oldest.exists()
        fleet.start("--concurrency=1", pool="solo", **{work.CLOCK_AHEAD_MS: str(3 * HOUR_MS)})
        fleet.app.tasks["celery.backend_cleanup"].apply_async(queue=work.QUEUE).get(timeout=PATIENCE_S)
        assert not oldest.exists()


@pytest.mark.parametrize(
    ("result_expires", "options", "reserved_h", "roll_h"),
    [(60, "", 1, 1), (6 * 3600, "", 6, 1), (86400, "", 72, 18), (60, "?file_reserved_time_h=48", 48, 12),
     (60, "?roll_interval_h=5", 1, 5)],
)  # fmt: skip
def test_segments_roll_and_go_by_what_results_need(url, result_expires, options, reserved_h, roll_h):
    opened = Location.parse(url + options).keeping(result_expires).config()
    assert (opened.file_reserved_time_h, opened.roll_interval_h) == (reserved_h, roll_h)
    assert opened.delete_when == ANY_HOUR


def test_a_fork_waits_for_the_end_of_a_turn():
    """Seen: beat was forked while the duty thread imported a module, and waited for ever for that import."""
    guard, inside, go_on = main_process.TURN, threading.Event(), threading.Event()
    order: list[str] = []

    def turn_of_a_thread() -> None:
        with guard:
            inside.set()
            go_on.wait()
            order.append("turn ended")

    thread = threading.Thread(target=turn_of_a_thread)
    thread.start()
    inside.wait()
    threading.Timer(0.2, go_on.set).start()
    child = os.fork()
    if not child:
        with guard:  # the child's own, which nobody holds
            os._exit(0)
    order.append("forked")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    assert order == ["turn ended", "forked"]


def test_the_thread_begins_behind_the_last_fork_of_the_boot(tmp_path):
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1", "-B", "--schedule", str(tmp_path / "schedule"))
        wait_until(lambda: "the main process of one of" in worker.log.read_text(), "the thread begins")
        told = worker.log.read_text()
        assert "beat: Starting..." in told or len(worker.children()) == 2


def starts(fleet: Fleet, folder: Path, count: int) -> None:
    """Starts a worker with beat so often; beat's task has to come each time."""
    for number in range(count):
        schedule = ("-B", "--schedule", str(folder / f"schedule{number}"))
        worker = fleet.start("--concurrency=1", *schedule, **{work.DUTIES: "1"})

        def beats(log: Path = worker.log) -> bool:
            return "Scheduler: Sending due task cystore.fan_out" in log.read_text()

        wait_until(beats, f"beat of start {number} works")
        worker.kill()


@pytest.fixture
def host_fleet(tmp_path: Path) -> Iterator[Fleet]:
    with redis_named_by_host() as url:
        fleet = Fleet(tmp_path, url)
        try:
            yield fleet
        finally:
            fleet.stop()


def test_beat_works_in_each_start_quick(host_fleet, tmp_path):
    starts(host_fleet, tmp_path, 3)


@pytest.mark.slow
def test_beat_works_in_each_of_200_starts(host_fleet, tmp_path):
    starts(host_fleet, tmp_path, 200)
