"""Goal: a fleet does its stores' duties, whoever is killed, stopped or gone. Method: real workers, beat and Redis;
SIGKILL, SIGSTOP; what counts is what the store says in the end."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis as redis_py

import cystore
from cystore import MessageStore
from cystore.celery import registry
from cystore.celery.base import records
from cystore.celery.base.duty_leases import last_token, lease_key
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties.duty_runs import ALL, run
from cystore.celery.stores import close_shared
from cystore.celery.tasks import WAITING_MAX
from cystore.services.duty_table import Outcome
from tests.celery.chords.test_chord_steps import Steps, left_complete
from tests.celery.conftest import PATIENCE_S, Fleet, take_the_place, wait_until
from tests.support.celery import work
from tests.support.checks import check_chain, everything
from tests.support.clock import turn
from tests.support.process import Process
from tools.redis_server import redis_server

WITH_DUTIES = {work.DUTIES: "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    close_shared()


def runs(store: MessageStore, duty: str) -> int:
    return store.duties.last(duty).runs


def fill(store: MessageStore, count: int = 50) -> None:
    for number in range(count):
        store.put("T", b"x" * 500, keys=(f"k{number}",))


def is_dispatched(store: MessageStore) -> bool:
    return store.stats()["dispatch_behind_bytes"] == 0


def wait_for_dispatch(store: MessageStore) -> None:
    """What a store needs is done, and noted. A sweep of chords may dispatch before: so there is always more."""
    before = runs(store, "reput")

    def is_done() -> bool:
        fill(store, 1)
        return runs(store, "reput") > before

    wait_until(is_done, "dispatched by the fleet")


def test_duties_go_on_when_redis_was_killed_and_is_back_empty(folder):
    """A pool whose processes are replaced all the time: each fork happens beside the thread that serves the store.
    The broker is another Redis, which lives: this is about leases and registry."""
    with redis_server(own=True) as broker, redis_server(own=True) as redis:
        fleet = Fleet(folder, broker.broker_url)
        with_redis = {**WITH_DUTIES, work.SETTINGS: json.dumps({"cystore_redis_url": redis.url})}
        try:
            worker = fleet.start("--concurrency=2", "--max-tasks-per-child=3", **with_redis)
            fleet.start_beat(**with_redis)
            store = fleet.backend.store
            wait_until(lambda: all(runs(store, duty) for duty in ALL), "every duty has run")
            wait_for_dispatch(store)
            with redis_py.Redis.from_url(redis.url) as client:
                (status,) = registry.fleet(client)
                assert status.live and [w.name for w in status.workers] == ["worker0@test"]
                wait_until(
                    lambda: (
                        last_token(client, status.store_id, "reput") == store.duties.highest_token("reput")
                    ),
                    "Redis and the store count the same leases",
                )
                assert all(client.pttl(key) > 0 for key in client.scan_iter("cystore:*"))
            fill(store)
            wait_until(lambda: is_dispatched(store), "what was appended is dispatched")
            assert add_some(fleet, 20)

            os.kill(redis.pid, signal.SIGKILL)
            before = store.duties.highest_token("reput")
            fill(store)
            assert add_some(fleet, 5)
            wait_until(lambda: is_dispatched(store), "dispatched without Redis")
            wait_for_dispatch(store)
            assert store.duties.highest_token("reput") > before
            wait_until(lambda: "is away: " in worker.log.read_text(), "the log says so")
            with redis_server(own=True) as again:
                before = store.duties.highest_token("reput")
                take_the_place(redis, again)
                with redis_py.Redis.from_url(again.url) as client:
                    wait_until(lambda: registry.live_stores(client), "the store is known again")
                    wait_until(
                        lambda: fill(store, 1) or last_token(client, store_id_of(store), "reput") > before,
                        "leases are in Redis again",
                    )
                assert add_some(fleet, 5)
                log = worker.log.read_text()
                fleet.stop()
        finally:
            fleet.stop()
    # Each time once: on a busy machine a Redis that lives may answer too late, too.
    told = re.findall(r"is away: |is back", log)
    assert told == ["is away: ", "is back"] * (len(told) // 2) != []
    assert "Task cystore." not in log, "ticks that go well are no news"
    with cystore.open(folder / "store") as store:
        check_chain(store)


def add_some(fleet: Fleet, count: int) -> bool:
    results = [fleet.task(work.add).delay(number, 1) for number in range(count)]
    return [result.get(timeout=PATIENCE_S) for result in results] == list(range(1, count + 1))


def test_a_busy_pool_has_its_duties_done_by_the_main_process(folder):
    os.mkfifo(folder / "fifo")
    with redis_server(own=True) as redis:
        fleet = Fleet(folder, redis.broker_url)
        try:
            fleet.start("--concurrency=1", **WITH_DUTIES)
            fleet.start_beat()
            blocked = fleet.task(work.wait_unless_redelivered).delay(
                str(folder / "marker"), str(folder / "fifo")
            )
            wait_until(lambda: blocked.state == work.MARKED, "the pool is busy")
            store = fleet.backend.store
            fill(store)
            wait_until(lambda: is_dispatched(store), "the main process dispatches")
            wait_for_dispatch(store)
            with redis_py.Redis.from_url(redis.url) as client:
                assert client.llen(f"cystore.{store_id_of(store)}") <= WAITING_MAX + len(ALL)
        finally:
            fleet._workers[0].kill()
            fleet.stop()


def test_without_any_redis_a_worker_does_the_duties_and_dispatches_at_once(folder):
    """In memory is what is sent to the worker, so nothing is: there is no beat, and no lease but the store's."""
    fleet = Fleet(folder, "memory://")
    try:
        settings = {work.SETTINGS: json.dumps({"cystore_host_reput": True})}
        worker = fleet.start("--concurrency=1", **WITH_DUTIES, **settings)
        store = fleet.backend.store
        wait_until(lambda: runs(store, "reput"), "dispatch is hosted")
        token = store.duties.highest_token("reput")
        for _ in range(20):
            fill(store, 5)
            wait_until(lambda: is_dispatched(store), "dispatched")
        assert store.duties.highest_token("reput") == token, "one lease for all of it"
        assert worker.stop() == 0
        assert store.duties.acquire("reput", 1000) == token + 1, "the lease was given back"
    finally:
        fleet.stop()


# ------------------------------------------------------------------------------- the holder is killed, or stopped

HOLDER = """
import os
from celery import Celery
from cystore import clock
from cystore.celery.duties import duty_runs
clock.now_ms = clock.expiry_ms = (lambda now: lambda *of: now(*of) + later_ms)(clock.now_ms)
app = Celery("holder", broker=broker, backend=backend, set_as_current=False)
app.conf.update(result_backend_thread_safe=True, result_expires=1, cystore_chord_claim_s=0.01)
duty = duty_runs.ALL[name]._replace(lease_s=lease_s, bound_s=3600.0)
store = app.backend.store
"""
LEASE_S = 3600.0  # it ends when the test says so
LATER_MS = 2 * 3_600_000  # results are kept for an hour at least
SMALL = "mapped_file_size_commit_log_bytes=1048576&file_reserved_time_h=0&services=none&delete_when="
HOURS = ";".join(map(str, range(24)))
# Where in its step a duty dies: a failpoint of the part of the store that does it.
PLACES = {
    "reput": "dispatch.queue:40",
    "clean_expired": "clean.segment_gone:1",
    "flush": "flush.synced:1",
    "checkpoint": "flush.derived_synced:1",
    "scrub": "scrub.verified:1",
    "deliver_delayed": "deliver.appended:2",
    "chord_sweep": "append.published:1",  # the claim
}


@pytest.fixture
def scene(folder, redis, monkeypatch):
    """(An app on a store of small segments whose records are old, names for HOLDER.)"""
    backend = f"cystore://{folder}/store?{SMALL}{HOURS.replace(';', '%3B')}"
    app = work.make_app(redis.broker_url, backend)
    app.conf.result_expires = 1
    turn(monkeypatch, LATER_MS)
    yield app, {"broker": redis.broker_url, "backend": backend, "lease_s": LEASE_S, "later_ms": LATER_MS}
    close_shared()


def end_lease(client: redis_py.Redis, store: MessageStore, name: str) -> None:
    """The time of a lease is over."""
    assert client.pexpire(lease_key(store_id_of(store), name), 1)
    wait_until(lambda: not client.exists(lease_key(store_id_of(store), name)), "its lease is over")


@pytest.fixture
def kill_a_holder(
    scene, redis, build_environment
) -> Callable[[str, Callable[[MessageStore], object]], MessageStore]:
    """`kill_a_holder(duty, fill)`: somebody dies in the middle of the duty, on a store that was filled; then it is
    done here."""
    app, names = scene

    def kill(name: str, fill: Callable[[MessageStore], object]) -> MessageStore:
        with Process(build_environment("failpoints")) as holder:
            holder.do(HOLDER, name=name, **names)
            store = app.backend.store
            store_id_of(store)
            fill(store)
            # On a busy machine a run may end before that, because something did not answer in time.
            holder.send(
                "os.environ['CYSTORE_FAILPOINT'] = place\nwhile True: duty_runs.run(app, duty)",
                place=PLACES[name],
            )
            assert holder.wait() == -signal.SIGKILL
        # A run before may have had nothing to do yet.
        assert store.duties.last(name).outcome is not Outcome.DONE or not store.duties.last(name).done
        token = store.duties.highest_token(name)
        assert run(app, ALL[name]) is None, "the lease does not end with its holder"
        with redis_py.Redis.from_url(redis.url) as client:
            end_lease(client, store, name)
        assert run(app, ALL[name]) is not None
        assert store.duties.last(name).outcome is Outcome.DONE
        assert store.duties.highest_token(name) == token + 1
        return store

    return kill


def test_every_duty_has_a_place_to_be_killed_at():
    assert PLACES.keys() == ALL.keys()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["reput", "clean_expired", "flush", "checkpoint", "scrub"])
def test_a_holder_that_is_killed_in_the_middle_of_a_duty(kill_a_holder, name):
    def prepare(store: MessageStore) -> None:
        fill(store, 6000)
        if name in ("clean_expired", "scrub", "checkpoint"):
            store.dispatch()
        if name == "clean_expired":
            store.flush()

    store = kill_a_holder(name, prepare)
    store.dispatch()
    records = check_chain(store)
    assert records == sum(len(messages) for messages in everything(store).values())
    if name == "clean_expired":
        assert records < 6000
    else:
        assert records == 6000
        assert not store.scrub(1 << 30).damage


def test_a_holder_that_is_killed_while_it_delivers_delivers_nothing_twice(scene, kill_a_holder):
    app, _ = scene
    count = 5000

    def delayed(store: MessageStore) -> None:
        for number in range(count):
            store.put("T", str(number).encode(), delay_level=1)

    store = kill_a_holder("deliver_delayed", delayed)
    while run(app, ALL["deliver_delayed"]):
        pass
    assert sorted(int(bytes(m.body)) for m in everything(store)["T", 0]) == list(range(count))
    assert check_chain(store) == 2 * count
    assert not store.scrub(1 << 30).damage


def test_a_holder_that_is_killed_while_it_sweeps_leaves_a_chord_that_is_ended_once(scene, kill_a_holder):
    """It had claimed the body, and not sent it."""
    app, _ = scene
    app.conf.task_default_queue = f"q{uuid4()}"
    led = Steps(app.backend)
    store = kill_a_holder("chord_sweep", lambda store: left_complete(led))
    assert [m.tags for m in store.scan() if m.topic == records.CHORDS].count("CLAIM") == 2
    assert run(app, ALL["chord_sweep"]) == 0
    assert led.queued() == [["A", "B"]]
    assert led.run.done


def test_a_holder_that_is_stopped_for_longer_than_its_lease_does_no_harm(scene, redis):
    app, names = scene
    store = app.backend.store
    fill(store, 6000)
    with Process() as holder, redis_py.Redis.from_url(redis.url) as client:
        holder.do(HOLDER + "duty_runs.STEP_BYTES = 4096", name="reput", **names)
        holder.send("duty_runs.run(app, duty)")
        control = store._attached().control

        def stands_between_steps() -> bool:
            holder.stop()
            if 0 < store.stats()["dispatched"] < store.wrote_position and not control.owner("duty_reput"):
                return True
            holder.go_on()
            assert store.stats()["dispatched"] < store.wrote_position, "it was over before it was stopped"
            return False

        wait_until(stands_between_steps, "stopped between two steps")
        at, old = store.stats()["dispatched"], store.duties.highest_token("reput")
        end_lease(client, store, "reput")
        with store.duties.step("reput", old + 1, ttl_ms=60_000):
            assert store.dispatch(max_bytes=10_000) > 0
        new_at = store.stats()["dispatched"]
        holder.go_on()
        done = holder.answer()
        assert done is not None and done <= at
        assert store.stats()["dispatched"] == new_at, "it went on with a lease that was over"
    assert store.duties.highest_token("reput") == old + 1
    store.dispatch()
    assert check_chain(store) == 6000
    assert not store.scrub(1 << 30).damage


# --------------------------------------------------------------------------------------------------- slow ones


@pytest.mark.slow
def test_ticks_to_a_dead_store_do_not_pile_up(folder):
    """Two stores on one Redis: the worker of one is killed, the other continues."""
    with redis_server(own=True) as redis, redis_py.Redis.from_url(redis.url) as client:
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        dead, other = Fleet(folder / "a", redis.broker_url), Fleet(folder / "b", redis.broker_url)
        try:
            worker = dead.start("--concurrency=1", **WITH_DUTIES)
            other.start("--concurrency=1", **WITH_DUTIES)
            other.start_beat()
            stores = dead.backend.store, other.backend.store
            for store in stores:
                wait_until(lambda store=store: all(runs(store, duty) for duty in ALL), "every duty has run")
            ids = [store_id_of(store) for store in stores]
            assert set(registry.live_stores(client)) == set(ids)
            worker.kill()
            wait_until(lambda: registry.live_stores(client) == [ids[1]], "it counts as gone")
            left = client.llen(f"cystore.{ids[0]}")
            assert left <= WAITING_MAX + len(ALL)
            for _ in range(5):
                wait_for_dispatch(stores[1])
            assert client.llen(f"cystore.{ids[0]}") == left
            live, gone = registry.fleet(client)
            assert (live.live, gone.live) == (True, False)
            dead.start("--concurrency=1", **WITH_DUTIES)
            wait_until(lambda: not client.llen(f"cystore.{ids[0]}"), "what was left is taken")
            wait_for_dispatch(stores[0])
        finally:
            dead.stop()
            other.stop()


@pytest.mark.slow
def test_no_duty_stands_still_when_workers_and_beat_are_killed_again_and_again(folder, rng):
    with redis_server(own=True) as redis:
        fleet = Fleet(folder, redis.broker_url)
        try:
            workers = [fleet.start("--concurrency=2", **WITH_DUTIES) for _ in range(2)]
            beat = fleet.start_beat()
            store, put = fleet.backend.store, 0
            for _ in range(12):
                fill(store)
                put += 50
                victim = rng.randrange(3)
                if victim < 2:
                    workers[victim].kill()
                    workers[victim] = fleet.start("--concurrency=2", **WITH_DUTIES)
                else:
                    beat.kill()
                    beat = fleet.start_beat()
                wait_until(lambda: is_dispatched(store), "dispatched")
            fleet.stop()
        finally:
            fleet.stop()
    with cystore.open(folder / "store") as store:
        assert len(everything(store)["T", 0]) == put
        assert not store.scrub(1 << 30).damage


@pytest.mark.slow
def test_the_broker_itself_is_killed_and_comes_back_empty(folder):
    """Results and duties go on. A worker whose broker dies while it has a message may end with an error of kombu's
    (5.7: its channel restores messages through a connection that is gone); then it is started again, as a supervisor
    would."""
    with redis_server(own=True) as redis:
        fleet = Fleet(folder, redis.broker_url)
        try:
            worker = fleet.start("--concurrency=2", **WITH_DUTIES)
            fleet.start_beat()
            store = fleet.backend.store
            assert add_some(fleet, 10)
            wait_until(lambda: all(runs(store, duty) for duty in ALL), "every duty has run")
            os.kill(redis.pid, signal.SIGKILL)
            fill(store)
            fleet.backend.store_result("local", 5, "SUCCESS")
            assert fleet.app.AsyncResult("local").get(timeout=PATIENCE_S) == 5
            if worker.process.poll() is None:
                wait_until(lambda: is_dispatched(store) or worker.process.poll() is not None, "dispatched")
            with redis_server(own=True) as again, redis_py.Redis.from_url(again.url) as client:
                before = store.duties.highest_token("reput")
                take_the_place(redis, again)
                if worker.process.poll() is not None:
                    worker = fleet.start("--concurrency=2", **WITH_DUTIES)
                wait_until(lambda: registry.live_stores(client), "the store is known again")
                wait_until(
                    lambda: fill(store, 1) or last_token(client, store_id_of(store), "reput") > before,
                    "leases again",
                )
                assert add_some(fleet, 10)
                wait_until(lambda: is_dispatched(store), "dispatched")
                fleet.stop()
        finally:
            fleet.stop()
