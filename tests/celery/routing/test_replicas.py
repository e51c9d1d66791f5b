"""Goal: the results of a home whose host died are read from its replica, which never says that it is fresh; and a
replica that became the master takes the home's records and ends its chords. Method: a master and its slave in this
process, a reader through Redis, and single steps of a worker."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.exceptions import ImproperlyConfigured
from celery.result import AsyncResult, GroupResult

import cystore
from cystore.celery import homes, replicas
from cystore.celery.backend import ReplicaBackend
from cystore.celery.base import queues, records
from cystore.celery.base.identity import is_replica, known_home_of, store_id_of
from cystore.celery.chords import chord_steps
from cystore.celery.duties import answers
from cystore.celery.duties.answers import ReadService
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing import client as client_module
from cystore.celery.routing import lists, replica_look, result_look
from cystore.celery.stores import close_shared
from cystore.services.threads import ServiceThread
from tests.celery.chords.test_chord_steps import Steps, left_complete
from tests.celery.routing.test_homes import UNKNOWN_HOME, sent
from tests.support.clock import turn
from tests.support.ha.ha_pair import free_port, masters, slaves, until, wait_log, wrote
from tools.redis_server import Redis, redis_server

BIG = {"mapped_file_size_commit_log_bytes": 1 << 24, "max_message_size_bytes": 1 << 23}


def app_at(path: Path, **settings: Any) -> Celery:
    app = Celery("replicas", broker="memory://", backend=f"cystore://{path}", set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, **settings)
    return app


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[cystore.MessageStore, cystore.MessageStore]]:
    """A master, and its slave in the folder of replicas."""
    port = free_port()
    with (
        cystore.open(tmp_path / "master", **masters(port, **BIG)) as master,
        cystore.open(tmp_path / "replicas" / "host-a", **slaves(port, **BIG)) as slave,
    ):
        master.put("T", b"first")
        wait_log(slave, wrote(master))
        yield master, slave
    close_shared()


def test_a_replica_has_the_home_of_its_master(tmp_path, pair):
    master, slave = pair
    home = known_home_of(master)
    assert home == store_id_of(master) == known_home_of(slave)
    assert store_id_of(slave) != home
    assert (is_replica(master), is_replica(slave)) == (False, True)
    assert replicas.replicas_in(tmp_path / "replicas") == {home: slave.path}
    slave.close()
    master.close()
    with cystore.open(slave.path, services="none", broker_role="async_master") as promoted:
        assert known_home_of(promoted) == home
        assert not is_replica(promoted)


def test_a_replica_without_a_master_has_no_home_yet(tmp_path):
    with cystore.open(tmp_path / "replicas" / "new", **slaves(free_port(), services="none")) as slave:
        assert known_home_of(slave) == store_id_of(slave)
        assert replicas.replicas_in(tmp_path / "replicas") == {}


def test_two_replicas_of_one_home_are_told_apart(tmp_path, caplog):
    for name in ("a", "b"):
        with cystore.open(tmp_path / name, services="none"):
            (tmp_path / name / "config" / "storeId").write_text(UNKNOWN_HOME)
    (tmp_path / "no store").mkdir()
    assert replicas.replicas_in(tmp_path) == {UNKNOWN_HOME: tmp_path / "a"}
    assert f"{tmp_path}/b is ignored" in caplog.text
    assert replicas.replicas_in(tmp_path, str(tmp_path / "a")) == {UNKNOWN_HOME: tmp_path / "b"}
    assert replicas.served_in(tmp_path) == {}, "copies: the home has a master elsewhere"


def test_a_copy_does_not_hide_the_replica(tmp_path, pair):
    master, slave = pair
    home, copy = known_home_of(master), tmp_path / "replicas" / "a-copy"
    with cystore.open(copy, services="none"):
        (copy / "config" / "storeId").write_text(home)
    assert replicas.served_in(tmp_path / "replicas") == {home: slave.path}
    assert replicas.replicas_in(tmp_path / "replicas") == {home: slave.path}


def test_a_copy_of_a_promoted_replica_does_not_claim_the_home(tmp_path, pair, caplog):
    """Seen: a backup in the folder of replicas consumed the home's queue beside the present master."""
    master, slave = pair
    home, folder = known_home_of(master), tmp_path / "backups"
    slave.close()
    master.close()
    with cystore.open(slave.path, services="none", broker_role="async_master") as promoted:
        promoted.put("T", b"by the new master")
    copy = folder / "a-backup"
    shutil.copytree(slave.path, copy)
    assert replicas.served_in(tmp_path / "replicas") == {home: slave.path}
    assert replicas.served_in(folder) == {}
    assert f"{copy} is not served: it is a copy" in caplog.text
    (folder / "host-a").symlink_to(slave.path)
    assert replicas.replicas_in(folder) == {home: slave.path}
    with cystore.open(copy, services="none", broker_role="async_master"):
        pass  # the operator says that this is the master now
    assert replicas.served_in(folder)[home] == copy


def test_a_link_leads_to_a_replica_on_another_disk(tmp_path, pair):
    master, slave = pair
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "host-a").symlink_to(slave.path)
    (folder / "nowhere").symlink_to(folder / "nowhere")
    assert replicas.served_in(folder) == {known_home_of(master): slave.path}


def test_a_replica_whose_name_is_no_text(tmp_path, pair):
    """It must not keep the worker from the other replicas."""
    _, slave = pair
    slave.close()
    path = tmp_path / "replicas" / os.fsdecode(b"host \xff")
    slave.path.rename(path)
    app = app_at(tmp_path / "own", cystore_replicas=str(tmp_path / "replicas"))
    (home,) = replicas.served_in(tmp_path / "replicas")
    assert app.backend.of_home(home).location.path == str(path)


def test_a_client_with_a_replica_names_the_home_as_soon_as_its_master_did(tmp_path):
    """Seen: it named the id of its own directory, a home that nobody has, and its results never came."""
    port = free_port()
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{port}"
    app = Celery("web", broker="memory://", backend=f"cystore://{hosts}{tmp_path}/r?services=all",
                 set_as_current=False)  # fmt: skip
    app.conf.result_backend_thread_safe = True

    def named() -> str | None:
        headers = {"id": uuid4().hex, "task": "t"}
        app.backend.on_task_call(None, headers["id"])
        homes.name_home(headers=headers)
        return headers.get(homes.HOME)

    assert named() is None
    with cystore.open(
        tmp_path / "master", **masters(port, mapped_file_size_commit_log_bytes=64 << 20)
    ) as master:
        assert until(named) == known_home_of(master)
        master.put("T", b"x")
        wait_log(app.backend.store, wrote(master))
    assert named() == known_home_of(app.backend.store) != store_id_of(app.backend.store)
    close_shared()


@pytest.mark.parametrize("value", ["relative/path", 7])
def test_a_folder_that_makes_no_sense(value):
    with pytest.raises(ImproperlyConfigured, match="cystore_replicas must be the absolute path"):
        replicas.folder_of(Celery("x", set_as_current=False, changes={"cystore_replicas": value}))


# ------------------------------------------------------------------------------------------------ reading


@contextmanager
def answering(app: Celery, store: cystore.MessageStore, redis: Redis) -> Iterator[ReadService]:
    """As a worker of the replica's host does it."""
    location = RedisLocation.parse(redis.url)
    backend = app.backend if app.backend.location.path == str(store.path) else ReplicaBackend(app, store.path)
    with backend.for_a_while():
        service = ReadService(backend, store, location, threading.RLock(), replicated=True)
        threads = [
            ServiceThread("reads", service.turn, 0.05), ServiceThread("waits", service.wait_turn, 0.05)
        ]  # fmt: skip
        try:
            with lists.Line(location) as line:
                until(lambda: service._name in {name for name, _ in line.signs()})
            yield service
        finally:
            for thread in threads:
                thread.stop()
            service.end()
            for thread in threads:
                thread.join(100)
            service.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with redis_server(own=True) as server:
        yield server


@pytest.fixture
def redis(server: Redis) -> Redis:
    """Without the homes of the test before."""
    with lists.Line(RedisLocation.parse(server.url)) as line:
        line._client.flushall()
    return server


def reader(redis: Redis, home: str) -> Celery:
    app = Celery("web", broker=redis.broker_url, backend="cystore+remote://", set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_home=home)
    return app


def test_final_results_of_a_silent_home_come_from_its_replica(tmp_path, pair, redis, monkeypatch, caplog):
    """An unfinished task, and one that the replica does not know, are never told as the present state."""
    monkeypatch.setattr(result_look, "ANSWER_S", 0.5)
    master, slave = pair
    ids = {name: f"{name} {uuid4()}" for name in ("done", "failed", "large", "begun", "group")}
    home, large = known_home_of(master), "x" * 5_000_000  # two parts
    at_home = app_at(master.path)
    at_home.backend.store_result(ids["done"], 5, states.SUCCESS)
    at_home.backend.store_result(ids["failed"], ValueError("far"), states.FAILURE)
    at_home.backend.store_result(ids["large"], large, states.SUCCESS)
    at_home.backend.store_result(ids["begun"], None, states.STARTED)
    saved = GroupResult(ids["group"], [AsyncResult(ids["done"], app=at_home)], app=at_home)
    at_home.backend.save_group(ids["group"], saved)
    wait_log(slave, wrote(master))
    app = app_at(tmp_path / "own")
    web = reader(redis, home)
    with answering(app, slave, redis):
        result = AsyncResult(ids["done"], app=web)
        assert result.get(timeout=20) == 5
        meta = web.backend.get_task_meta(ids["done"], cache=False)
        assert meta["cystore_as_of_ms"] == slave.stats()["last_store_timestamp_ms"]
        assert f"store {home} is silent: its final results come from a replica" in caplog.text
        assert AsyncResult(ids["failed"], app=web).state == states.FAILURE
        assert AsyncResult(ids["large"], app=web).get(timeout=20) == large
        assert GroupResult.restore(ids["group"], app=web).results[0].id == ids["done"]
        for other in (ids["begun"], f"unknown {uuid4()}"):
            with pytest.raises(
                homes.HomeAwayError, match="its replica has no final result, as of its newest"
            ):
                _ = AsyncResult(other, app=web).state
        monkeypatch.setattr(replica_look, "ANSWER_S", 0.3)
        monkeypatch.setattr(ReadService, "_answer", lambda *_args: None)
        with pytest.raises(homes.HomeAwayError) as away:
            _ = AsyncResult(f"not asked {uuid4()}", app=web).state
        assert "its replica" not in str(away.value), "the replica did not answer"


def test_a_heartbeat_without_a_sensible_time_harms_nobody(pair, redis, monkeypatch):
    monkeypatch.setattr(result_look, "ANSWER_S", 0.1)
    with lists.Line(RedisLocation.parse(redis.url)) as line:
        line._client.zadd(lists.READERS, {"x": float("inf"), UNKNOWN_HOME: 1e300})
        assert [ago_ms for _, ago_ms in line.signs()] == [0, 0]
    with pytest.raises(homes.HomeAwayError):
        _ = AsyncResult("t", app=reader(redis, known_home_of(pair[0]))).state


def test_a_wait_gets_what_reaches_the_replica(tmp_path, pair, redis, monkeypatch):
    monkeypatch.setattr(result_look, "SIGNS_S", 0.1)
    master, slave = pair
    web, waited, later = reader(redis, known_home_of(master)), [], f"later {uuid4()}"
    with answering(app_at(tmp_path / "own"), slave, redis):
        result = AsyncResult(later, app=web)
        thread = threading.Thread(target=lambda: waited.append(result.get(timeout=60)))
        thread.start()
        app_at(master.path).backend.store_result(later, 7, states.SUCCESS)
        thread.join(60)
    assert waited == [7]


def test_a_home_that_answers_is_asked_and_not_its_replica(tmp_path, pair, redis, monkeypatch):
    master, slave = pair
    web, there = reader(redis, known_home_of(master)), f"there {uuid4()}"

    def never(*_args: object) -> None:
        raise AssertionError("the replica was asked")

    monkeypatch.setattr(client_module.replica_look, "final_results", never)
    at_home = app_at(master.path)
    with answering(app_at(tmp_path / "own"), slave, redis), answering(at_home, master, redis):
        assert AsyncResult(f"unknown {uuid4()}", app=web).state == states.PENDING
        at_home.backend.store_result(there, 1, states.SUCCESS)
        assert AsyncResult(there, app=web).result == 1


def test_a_master_whose_lease_is_over_leaves_the_answer_to_the_next_one(pair, redis, monkeypatch):
    """It stood still, perhaps: another host may be the master by now, and know more."""
    monkeypatch.setattr(result_look, "ANSWER_S", 0.5)
    monkeypatch.setattr(answers, "AWAY_S", 0.1)
    master, _ = pair
    at_home, web = app_at(master.path), reader(redis, known_home_of(master))
    lease = threading.Event()
    lease.set()
    monkeypatch.setattr(answers, "is_master", lambda store: lease.is_set())
    with answering(at_home, master, redis), lists.Line(RedisLocation.parse(redis.url)) as line:
        assert AsyncResult(f"unknown {uuid4()}", app=web).state == states.PENDING
        lease.clear()
        with pytest.raises(homes.HomeAwayError):
            _ = AsyncResult(f"unknown {uuid4()}", app=web).state
        assert line._client.llen(lists.requests_key(known_home_of(master))) >= 1
        lease.set()
        assert AsyncResult(f"unknown {uuid4()}", app=web).state == states.PENDING


# ------------------------------------------------------------------------------------------------ the new master


def test_records_for_a_replica_wait_until_it_is_the_master(tmp_path, pair):
    master, slave = pair
    home = known_home_of(master)
    app = app_at(tmp_path / "own", cystore_replicas=str(tmp_path / "replicas"))
    record = app.tasks[homes.HOME_RECORD]
    with pytest.raises(cystore.StoreIsSlaveError):  # as a task it is retried
        record.run(home, "0" * 32, sent("t", states.SUCCESS, 1))
    with pytest.raises(ImproperlyConfigured, match="reached a worker of store"):
        record.run(UNKNOWN_HOME, "0" * 32, sent("t", states.SUCCESS, 1))
    slave.close()
    with cystore.open(slave.path, services="none", broker_role="async_master") as promoted:
        assert record.run(home, "0" * 32, sent("t", states.SUCCESS, 1)) == 1
        assert record.run(home, "0" * 32, sent("t", states.SUCCESS, 1)) == 0
        assert [m.tags for m in promoted.query("celery_results", "t", 9)] == [states.SUCCESS]
    cystore.open(slave.path, exclusive=True, services="none").close()  # no use is left open


def test_records_are_kept_while_the_replica_cannot_be_found(tmp_path, monkeypatch):
    """For example while a process has no descriptor left: an acknowledged result would be lost."""
    app = app_at(tmp_path / "own", cystore_replicas=str(tmp_path / "replicas"))
    record = app.tasks[homes.HOME_RECORD]

    class AgainError(Exception):
        pass

    monkeypatch.setattr(record, "retry", lambda **_options: AgainError())
    with pytest.raises(AgainError):
        record.run(UNKNOWN_HOME, "0" * 32, sent("t", states.SUCCESS, 1))
    close_shared()


def delivered(app: Celery, home: str) -> int:
    """Runs the tasks that wait in the queue of a home, as its worker does; their number."""
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(queues.queue_of_store(home))
        count = queue.qsize()
        for _ in range(count):
            message = queue.get(block=False)
            message.ack()
            app.tasks[homes.HOME_RECORD].run(*message.payload[0])
    return count


def test_a_program_beside_a_replica_sends_its_records_to_the_master(tmp_path, pair):
    master, slave = pair
    task_id = f"sent {uuid4()}"
    app_at(slave.path).backend.store_result(task_id, 1, states.SUCCESS)
    assert delivered(app_at(master.path), known_home_of(master)) == 1
    (found,) = master.query("celery_results", records.key_of(task_id), 9)
    assert found.tags == states.SUCCESS
    cystore.open(tmp_path / "lost", **slaves(free_port(), services="none")).close()
    with pytest.raises(cystore.StoreIsSlaveError):  # it does not know whose replica it is
        app_at(tmp_path / "lost").backend.store_result(task_id, 1, states.SUCCESS)


def test_chords_go_on_at_the_replica(tmp_path, pair, monkeypatch):
    """The last part of one comes after its home's host died. Another one lacks only its body: the sweep sends it."""
    master, slave = pair
    home, queue = known_home_of(master), f"q{uuid4()}"
    at_master = app_at(master.path, task_default_queue=queue)
    half, whole = Steps(at_master.backend), Steps(at_master.backend)
    half.open()
    half.part("a", 0, 1)
    left_complete(whole)
    wait_log(slave, wrote(master))
    slave.close()
    master.close()

    folder = str(tmp_path / "replicas")
    app = app_at(tmp_path / "own", task_default_queue=queue, cystore_replicas=folder)
    with cystore.open(slave.path, services="none", broker_role="async_master"):
        request = half.request("b", 1)
        request.cystore_home = home
        app.backend.mark_as_done("b", 2, request)  # a worker of this host ran the task
        assert half.queued() == []
        assert delivered(app, home) == 1
        assert half.queued() == [[1, 2]]

        turn(monkeypatch, 10_000)
        backend = app.backend.of_home(home)
        chord_steps.begin_again(str(slave.path))
        with backend.for_a_while():
            assert chord_steps.sweep_replica(backend) == 1
            assert chord_steps.sweep_replica(backend) == 0
        assert whole.queued() == [["A", "B"]]
    cystore.open(slave.path, exclusive=True, services="none").close()  # no use is left open
