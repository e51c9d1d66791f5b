"""Goal: the metrics of a fleet are what its workers did. Method: real workers on a real Redis, killed in the midst of a
task, idle, or with the port of another one; their metrics are read by Prometheus's own parser."""

from __future__ import annotations

import socket

import pytest

from tests.celery.conftest import wait_until
from tests.support.celery import work
from tests.support.celery.scrapes import MetricsServer, scraped

NAME = "tests.support.celery.work."


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def port(fresh_fleet) -> int:
    """A port at which each worker of the fleet would serve its metrics."""
    port = free_port()
    fresh_fleet.environment[work.SETTINGS] = f'{{"cystore_metrics_listen": "127.0.0.1:{port}"}}'
    return port


def test_a_worker_serves_what_its_fleet_does(fresh_fleet, port):
    """From the worker's start on: successes, failures and retries with their queue and times."""
    worker = fresh_fleet.start("--concurrency=2")
    wait_until(lambda: "metrics are at" in worker.log.read_text(), "the worker listens")
    url = f"http://127.0.0.1:{port}/metrics"
    scraped(url)  # the reader begins
    results = [fresh_fleet.task(work.add).delay(number, 1) for number in range(5)]
    results.append(fresh_fleet.task(work.third_time_lucky).delay())
    failed = fresh_fleet.task(work.fail).delay("for the test")
    for result in results:
        result.get(timeout=120)
    failed.get(timeout=120, propagate=False)

    def is_told() -> bool:
        found = scraped(url)
        return found.sum("cystore_tasks_total", state="FAILED") + found.sum(
            "cystore_tasks_total", state="SUCCEEDED"
        ) == 7  # fmt: skip

    wait_until(is_told, "all ends are counted")
    found = scraped(url)
    store = str(fresh_fleet.store_path)
    add = {"name": NAME + "add", "queue": work.QUEUE, "store": store}
    for state in ("SENT", "RECEIVED", "STARTED", "SUCCEEDED"):
        assert found.sum("cystore_tasks_total", state=state, **add) == 5, state
    assert found.sum("cystore_task_run_seconds_count", **add) == 5
    assert found.sum("cystore_task_wait_seconds_count", **add) == 5
    assert 0 < found.sum("cystore_task_wait_seconds_sum", **add) < 600
    lucky = {"name": NAME + "third_time_lucky", "queue": work.QUEUE}
    assert found.sum("cystore_task_retries_total", **lucky) == 2
    assert found.sum("cystore_tasks_total", state="SENT", **lucky) == 3
    assert found.sum("cystore_task_wait_seconds_count", **lucky) == 3
    assert found.sum("cystore_tasks_total", state="FAILED", name=NAME + "fail") == 1
    for gauge in ("in_flight", "waiting", "unfinished", "lost"):
        assert found.sum(f"cystore_tasks_{gauge}") == 0, gauge
    assert found.sum("cystore_workers_alive") == 1
    assert found.values("cystore_worker_alive", "worker") == {"worker0@test": 1}
    wait_until(
        lambda: scraped(url).values("cystore_duty_last_run_timestamp_seconds", "duty").get("clean_expired"),
        "a duty has run",
    )
    assert found.sum("cystore_store_away") == 0 and found.sum("cystore_put_messages_total") > 0


def test_the_port_goes_to_the_next_worker(fresh_fleet, port):
    """Two workers have the setting. One gets the port, the other one when the first is killed, although processes of
    its pool were forked while it listened."""
    first = fresh_fleet.start("--concurrency=1", "--max-tasks-per-child=1")
    wait_until(lambda: "metrics are at" in first.log.read_text(), "the first worker listens")
    for _ in range(2):  # each in a process that was forked for it
        fresh_fleet.task(work.add).delay(1, 1).get(timeout=120)
    second = fresh_fleet.start("--concurrency=1")
    wait_until(lambda: "serves no metrics now" in second.log.read_text(), "the port is in use")
    url = f"http://127.0.0.1:{port}/metrics"
    wait_until(lambda: scraped(url).sum("cystore_workers_alive") == 2, "an idle worker is counted")
    first.kill()
    wait_until(lambda: "metrics are at" in second.log.read_text(), "the second worker listens")
    wait_until(lambda: scraped(url).sum("cystore_workers_alive") == 1, "the killed worker is not counted")


def test_a_killed_worker_and_its_task_are_seen(fresh_fleet, tmp_path):
    """Another process, which only reads the store, sees the processes of the worker."""
    worker = fresh_fleet.start("--concurrency=1", **work.SOON)
    runs, word = tmp_path / "runs", tmp_path / "word"
    fresh_fleet.task(work.waits_for_a_word).delay(str(runs), str(word))
    wait_until(runs.exists, "the task runs")
    with MetricsServer(fresh_fleet.store_path) as server:
        found = server.scrape()
        assert found.sum("cystore_tasks_in_flight", queue=work.QUEUE) == 1
        assert found.sum("cystore_tasks_lost") == 0
        assert found.values("cystore_worker_alive", "worker") == {"worker0@test": 1}
        assert found.sum("cystore_workers_alive") == 1
        worker.kill()
        wait_until(lambda: server.scrape().sum("cystore_tasks_lost") == 1, "the task is lost")
        found = server.scrape()
        assert found.sum("cystore_workers_alive") == 0
        assert found.values("cystore_worker_alive", "worker") == {"worker0@test": 0}
        assert found.sum("cystore_tasks_total", state="STARTED") == 0  # before this reader
        word.write_text("go on")
        fresh_fleet.start("--concurrency=1", **work.SOON)
        wait_until(
            lambda: server.scrape().sum("cystore_tasks_total", state="SUCCEEDED") == 1, "it runs again"
        )
        found = server.scrape()
        assert found.sum("cystore_tasks_lost") == found.sum("cystore_tasks_in_flight") == 0
        assert found.sum("cystore_workers_alive") == 1
