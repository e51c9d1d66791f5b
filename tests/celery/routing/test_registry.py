"""Goal: the fleet knows which stores live, and only those get ticks. Method: a real Redis, two stores, the tasks in
this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis as redis_py
from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

import cystore
from cystore import MessageStore
from cystore.celery import registry, tasks
from cystore.celery.base import queues
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties import duty_runs
from cystore.celery.duties.duty_runs import ALL, REPUT
from cystore.services.duty_table import Outcome
from tools.redis_server import Redis, redis_server

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with redis_server(own=True) as redis:
        yield redis


@pytest.fixture
def client(server) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def app(server, url) -> Celery:
    app = Celery("registry", broker=server.broker_url, backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


@pytest.fixture
def store(app) -> MessageStore:
    return app.backend.store


@pytest.fixture
def other(tmp_path) -> Iterator[MessageStore]:
    with cystore.open(tmp_path / "other", mapped_file_size_commit_log_bytes=1 << 20) as store:
        yield store


@pytest.fixture
def hourly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every duty has a period of an hour, so none is due twice in a test."""
    for name, duty in ALL.items():
        monkeypatch.setitem(ALL, name, duty._replace(period_s=HOUR_MS / 1000))


def beat(client: redis_py.Redis, store: MessageStore, worker: str = "w1@here", **more) -> str:
    registry.heartbeat(client, store_id_of(store), store, worker, **more)
    return store_id_of(store)


def age(client: redis_py.Redis, store_id: str, seconds: float) -> None:
    """Makes the last heartbeat of a store (and of its workers) older."""
    client.zincrby(registry.STORES, -seconds * 1000, store_id)
    key = registry.store_key(store_id)
    for name, value in client.hgetall(key).items():
        ms, _, content = value.decode().partition(" ")
        client.hset(key, name, f"{int(ms) - int(seconds * 1000)} {content}")


def waiting(client: redis_py.Redis, store_id: str) -> int:
    return client.llen(f"cystore.{store_id}")


def fan_out(app: Celery) -> int:
    return app.tasks[tasks.FAN_OUT].apply(throw=True).get()


def test_what_is_known_of_a_store(app, client, store, other):
    store.put("T", b"x" * 1000)
    duty_runs.run(app, ALL["flush"])
    beat(client, store, roles=("worker", "reput"))
    beat(client, store, "w2@here")
    beat(client, other)
    mine, theirs = sorted(registry.fleet(client), key=lambda status: status.facts["path"], reverse=True)
    assert mine.store_id == store_id_of(store) and theirs.store_id == store_id_of(other)
    assert mine.live and mine.facts["path"] == str(store.path)
    assert mine.facts["wrote"] == store.wrote_position == mine.facts["dispatch_behind_bytes"]
    assert 0 < mine.facts["disk_used_percent"] <= 100
    assert mine.facts["log_bytes"] >= store.wrote_position
    assert [(w.name, w.roles, w.live) for w in mine.workers] == [
        ("w1@here", ("worker", "reput"), True),
        ("w2@here", ("worker",), True),
    ]
    assert mine.last_run("flush").outcome is Outcome.DONE and mine.last_run("flush").runs == 1
    assert mine.last_run("reput").outcome is Outcome.NEVER
    assert mine.as_json()["workers"][0]["name"] == "w1@here"


def test_the_fleet_as_a_table(app, client, store):
    duty_runs.run(app, REPUT)
    store_id = beat(client, store)
    with duty_runs.lease_for(app, store, ALL["scrub"]):
        store.duties.ran("scrub", store.duties.last("reput"))
        beat(client, store)
        text = registry.render(registry.fleet(client))
    for part in (store_id[:8], "live", str(store.path), "w1@here (worker)", "reput", "done", "by "):
        assert part in text
    age(client, store_id, 90)
    assert "gone, seen 2 min ago" in registry.render(registry.fleet(client))
    assert "no heartbeat of a store" in registry.render([])
    assert str(store.path) in registry.render([registry.here(store, store_id)])


def test_a_store_is_gone_after_45_s_and_forgotten_after_a_day(client, store, other):
    first, second = beat(client, store), beat(client, other)
    assert set(registry.live_stores(client)) == {first, second}
    age(client, first, 40)
    assert set(registry.live_stores(client)) == {first, second}
    age(client, first, 6)
    assert registry.live_stores(client) == [second]
    live, gone = registry.fleet(client)
    assert (live.store_id, live.live, gone.store_id, gone.live) == (second, True, first, False)
    assert 45 < gone.seen_s < 55
    assert not gone.workers[0].live
    age(client, first, registry.REMEMBERED_S)
    assert len(registry.fleet(client)) == 1
    beat(client, other)
    assert client.zcard(registry.STORES) == 1


def test_a_worker_that_went_away_is_shown_as_such(client, store):
    store_id = beat(client, store, "old@here")
    age(client, store_id, 3600)
    beat(client, store, "new@here")
    (status,) = registry.fleet(client)
    assert {worker.name: worker.live for worker in status.workers} == {"old@here": False, "new@here": True}
    assert 3590 < next(w for w in status.workers if w.name == "old@here").seen_s < 3700
    age(client, store_id, registry.REMEMBERED_S)
    beat(client, store, "new@here")
    (status,) = registry.fleet(client)
    assert [worker.name for worker in status.workers] == ["new@here"]


def test_every_key_expires_and_is_one_of_those_documented(app, client, store):
    store_id = beat(client, store)
    assert fan_out(app) == len(ALL)
    for duty in ALL.values():
        with duty_runs.lease_for(app, store, duty):
            keys = {key.decode() for key in client.scan_iter("cystore:*")}
            assert all(client.pttl(key) > 0 for key in keys)
            assert f"cystore:duties:{store_id}:lease:{duty.name}" in keys
            kinds = {key.replace(store_id, "ID").replace(duty.name, "DUTY") for key in keys}
            before = ("cystore:duties:", "cystore:")  # the second: what workers of releases before look at
            assert kinds - {f"{one}ID:token:{name}" for name in ALL for one in before} == {
                "cystore:duties:stores", "cystore:duties:ID:seen", "cystore:duties:ID:ticks",
                *(f"{one}ID:{key}:DUTY" for key in ("lease", "token") for one in before),
            }  # fmt: skip
    assert not client.keys("_kombu.binding.cystore*")


def test_only_stores_that_live_get_ticks(app, client, store, other, hourly):
    mine, theirs = beat(client, store), beat(client, other)
    age(client, theirs, 60)
    assert fan_out(app) == len(ALL)
    assert (waiting(client, mine), waiting(client, theirs)) == (len(ALL), 0)
    beat(client, other)
    assert fan_out(app) == len(ALL)
    assert waiting(client, theirs) == len(ALL)


def test_a_tick_is_sent_once_a_period_however_many_beats_there_are(app, client, store, hourly):
    store_id = beat(client, store)
    assert [fan_out(app) for _ in range(3)] == [len(ALL), 0, 0]
    key = f"cystore:duties:{store_id}:ticks"
    last = int(client.hget(key, "reput"))
    client.hset(key, "reput", last - HOUR_MS)
    client.hset(key, "flush", last + HOUR_MS)  # a clock that was set back
    assert fan_out(app) == 2


def test_ticks_that_nobody_takes_do_not_pile_up(app, client, store):
    store_id = beat(client, store)
    for _ in range(40):
        fan_out(app)
        client.delete(f"cystore:duties:{store_id}:ticks")
    assert waiting(client, store_id) <= tasks.WAITING_MAX + len(ALL)


def test_two_stores_have_leases_of_their_own(app, client, store, other):
    beat(client, store)
    with duty_runs.lease_for(app, store, REPUT) as mine, duty_runs.lease_for(app, other, REPUT) as theirs:
        assert mine is not None and theirs is not None
        with duty_runs.lease_for(app, other, REPUT) as second:
            assert second is None


def test_without_a_registry_the_ticks_go_to_the_store_of_the_worker(url, hourly):
    app = Celery("alone", broker="memory://", backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    queue = queues.own_queue(queues.queue_of_store(store_id_of(app.backend.store)))
    assert fan_out(app) == len(ALL)
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as simple:
        names = {simple.get(timeout=60).headers["task"] for _ in ALL}
    assert names == {duty.task for duty in ALL.values()}
    for duty in ALL.values():
        duty_runs.run(app, duty)
    assert fan_out(app) == 0, "all were done just now"


def test_the_command_status_shows_the_fleet(app, client, store, other):
    def status(*words: str) -> str:
        done = CliRunner().invoke(celery, ["cystore", "status", *words], default_map={"app": app})
        assert done.exit_code == 0, done.output
        return done.stdout

    mine, gone = beat(client, store), beat(client, other, "w2@there")
    age(client, gone, registry.LIVE_S + 1)
    told = json.loads(status("--json"))["fleet"]
    assert [(one["store_id"], one["live"]) for one in told["stores"]] == [(mine, True), (gone, False)]
    shown = status()
    assert mine[:8] in shown and "w1@here" in shown and "gone, seen" in shown
    app.conf.cystore_redis_url = "unix:///nowhere/redis.sock"
    assert "fleet: " in status() and "/nowhere/redis.sock" in json.loads(status("--json"))["fleet"]["why_not"]
