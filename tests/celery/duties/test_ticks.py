"""Goal: duties of a fleet that installed them cost it next to nothing: no pool process, no event, no message that
stays, next to no command of Redis. Method: real workers, beat and Redis; Redis counts its commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest
import redis as redis_py
from celery import Celery
from celery.beat import Scheduler
from celery.exceptions import InvalidTaskError
from celery.schedules import schedule

from cystore import MessageStore
from cystore.celery import registry
from cystore.celery.base import queues
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties import ticks
from cystore.celery.duties.duty_runs import ALL
from cystore.celery.duties.main_process import Keeper
from cystore.celery.tasks import FAN_OUT
from tests.celery.conftest import PATIENCE_S, Fleet, Worker, wait_until
from tests.support.celery import work
from tools.redis_server import Redis, redis_server

WITH_DUTIES = {work.DUTIES: "1"}
OLD_EXPIRES_S = 0.8  # of an earlier release's beat


class Forgetful(Scheduler):
    """A scheduler that keeps no `expires`, as that of django-celery-beat, and has a message to send all the time."""

    def setup_schedule(self):
        super().setup_schedule()
        for entry in self.schedule.values():
            entry.options.pop("expires", None)
            entry.schedule = schedule(0.02)


def commands(client: redis_py.Redis) -> dict[str, int]:
    """How often each command ran, those inside of scripts too."""
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in client.info("commandstats").items()}


def spent(client: redis_py.Redis, before: dict[str, int]) -> dict[str, int]:
    """The work since then, without that of a worker without duties, which waits for messages."""
    now = commands(client)
    return {
        name: count - before.get(name, 0)
        for name, count in now.items()
        if count > before.get(name, 0) and name not in ("brpop", "info", "publish")
    }


@contextmanager
def fleet_on(server: Redis, folder: Path, **settings: object) -> Iterator[Fleet]:
    fleet = Fleet(folder, server.broker_url, settings=settings)
    try:
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def server() -> Iterator[Redis]:
    with redis_server(own=True) as server:
        yield server


def test_duties_run_in_the_main_process(server, tmp_path):
    """Seen: a pool of `max_tasks_per_child=10` forked 17 times in 40 s, and Flower showed 3.7 tasks a second."""
    with fleet_on(server, tmp_path) as fleet:
        worker = fleet.start("--concurrency=2", "--max-tasks-per-child=1", "-E", **WITH_DUTIES)
        store = fleet.backend.store
        with redis_py.Redis.from_url(server.url) as client, Heard(fleet.app) as heard:
            wait_until(lambda: len(worker.children()) == 2, "the pool is there")
            pool = worker.children()
            wait_until(lambda: all(store.duties.last(duty).runs for duty in ALL), "every duty has run")
            sent = {duty: store.duties.last(duty).runs for duty in ALL}
            for duty in ALL.values():  # as the beat of an earlier release
                fleet.app.send_task(duty.task, queue=f"cystore.{store_id_of(store)}", expires=60)
            for _ in range(50):
                fleet.app.send_task(FAN_OUT, queue=queues.SHARED, expires=OLD_EXPIRES_S)
            wait_until(
                lambda: all(store.duties.last(duty).runs > sent[duty] for duty in ALL), "ticks are done"
            )
            wait_until(lambda: not client.llen(queues.SHARED), "the messages are taken")
            store.put("T", b"x")
            wait_until(lambda: not store.stats()["dispatch_behind_bytes"], "what was appended is dispatched")
            assert worker.children() == pool, "a duty was a task of the pool"
            wait_until(lambda: not client.hlen("unacked"), "the messages are acknowledged")
            assert not [event for event in heard.tasks if event["name"].startswith("cystore.")]
            log = worker.log.read_text()
            assert "Task cystore." not in log and "Traceback" not in log


def test_an_idle_store_costs_redis_next_to_nothing(server, url):
    """Seen: 96 commands a second. A minute of looks, and of heartbeats, without the minute."""
    app = Celery("idle", broker=server.broker_url, backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    host = Keeper(app, app.backend.store, "w@here", ("worker",))
    host._began -= 1000
    with redis_py.Redis.from_url(server.url) as client:
        assert host.run_once().done == len(ALL)
        before = commands(client)
        for _ in range(60):
            host.run_once()
        assert sum(spent(client, before).values()) <= 4
        for _ in range(round(60 / registry.HEARTBEAT_S)):
            host._next_beat = 0.0
            host.run_once()
        host._next_prune = host._next_beat = 0.0
        host.run_once()
        host.ask(FAN_OUT, "id")
        host.run_once()
        assert sum(spent(client, before).values()) <= 30, "less than one in two seconds"


@pytest.mark.slow  # a minute of an idle worker
def test_an_idle_fleet_costs_redis_less_than_a_command_a_second(server, tmp_path):
    """Seen: 96 commands a second. The worker's own wait for messages (BRPOP) and Celery's heartbeat (PUBLISH) are left
    out, as in the test above. Its log has a line a minute about its duties, if there was something to do."""
    with fleet_on(server, tmp_path) as fleet, redis_py.Redis.from_url(server.url) as client:
        worker = fleet.start("--concurrency=2", **WITH_DUTIES)
        store = fleet.backend.store
        wait_until(lambda: all(store.duties.last(duty).runs for duty in ALL), "every duty has run")
        seen = f"cystore:duties:{store_id_of(store)}:seen"
        begin_s, before = client.time()[0], commands(client)
        for _ in range(3):  # heartbeats of the worker, one in 20 s
            last = client.hgetall(seen)
            wait_until(lambda last=last: client.hgetall(seen) != last, "the worker tells that it lives")
        asked = {
            name: count for name, count in spent(client, before).items() if name not in ("time", "hgetall")
        }
        assert sum(asked.values()) <= client.time()[0] - begin_s, asked
        assert "duties of the last minute" not in worker.log.read_text()
        for told in (1, 2):
            wait_until(lambda told=told: lines_of_duties(store, worker) == told, "a line of the last minute")
        assert "Task cystore." not in worker.log.read_text()


def lines_of_duties(store: MessageStore, worker: Worker) -> int:
    """The lines about duties in a worker's log; gives them something to do, ten times a second at most."""
    store.put("T", b"x")
    threading.Event().wait(0.1)
    return worker.log.read_text().count("duties of the last minute")


class Heard:
    """The task events of a fleet."""

    def __init__(self, app: Celery) -> None:
        self._app, self.tasks = app, []
        self._ends, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Heard:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        with self._app.connection() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"task-received": self.tasks.append})
            with receiver.consumer_context() as (own, _, _):
                self._ready.set()
                while not self._ends.is_set():
                    with suppress(TimeoutError):
                        own.drain_events(timeout=0.2)


def test_a_scheduler_that_drops_every_expiry_piles_nothing_up_without_a_worker(server, tmp_path):
    """Seen with django-celery-beat: 86,000 messages a day. A worker that comes later throws old ones away."""
    with (
        fleet_on(server, tmp_path) as fleet,
        redis_py.Redis.from_url(server.url) as client,
    ):
        beat = start_forgetful_beat(fleet)
        wait_until(
            lambda: beat.log.read_text().count("Sending due task cystore.fan_out") > 50,
            "beat sends and sends",
        )
        assert 0 < client.llen(queues.SHARED) <= ticks.FAN_OUTS_WAITING_MAX
        waiting = [json.loads(one)["headers"]["expires"] for one in client.lrange(queues.SHARED, 0, -1)]
        assert all(waiting), "they expire whatever the scheduler says"
        for _ in range(100):  # an earlier release's
            fleet.app.send_task(FAN_OUT, queue=queues.SHARED)
        beat.kill()
        worker = fleet.start("--concurrency=1", "-E", **WITH_DUTIES, **asked_for_events(fleet))
        with Heard(fleet.app) as heard:
            wait_until(lambda: not client.llen(queues.SHARED), "a worker takes them")
            wait_until(lambda: fleet.backend.store.duties.last("scrub").runs, "duties are done meanwhile")
            fleet.app.send_task(
                "cystore.reput", queue=f"cystore.{store_id_of(fleet.backend.store)}", task_id="mine"
            )
            wait_until(
                lambda: "mine" in [event["uuid"] for event in heard.tasks], "an event for who asked for it"
            )
        assert "Task cystore." not in worker.log.read_text()


def start_forgetful_beat(fleet: Fleet) -> Worker:
    return fleet.start_beat("--scheduler", f"{__name__}:{Forgetful.__name__}")


def asked_for_events(fleet: Fleet) -> dict[str, str]:
    return {work.SETTINGS: json.dumps({"cystore_duty_events": True})}


def test_a_message_that_is_over_its_time_is_thrown_away():
    past, soon = (datetime.now(UTC) + timedelta(seconds=s) for s in (-1, 60))
    assert ticks._is_over({"expires": past.isoformat()})
    assert ticks._is_over({"expires": past.replace(tzinfo=None).isoformat()})
    assert not ticks._is_over({"expires": soon.isoformat()})
    assert not ticks._is_over({"expires": None})
    with pytest.raises(InvalidTaskError):
        ticks._is_over({"expires": "tomorrow"})


@pytest.mark.parametrize("embedded", [None, 5, [], "text"])
def test_a_message_with_an_odd_third_part_is_left_to_celery(embedded):
    """Such a message must not end the worker's connection: Celery rejects it."""

    class Sent:
        headers: ClassVar[dict[str, str]] = {"id": "1", "task": FAN_OUT}
        payload = ((), {}, embedded)

    assert ticks._is_part(Sent, Sent.headers)
