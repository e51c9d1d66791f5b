"""Goal: a Redis that is away or refuses us stops no result and no duty, is told once, and is used again when it is
back. Method: real servers that are killed, started again, or ask for what they are not given."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis as redis_py
from celery import Celery

from cystore.celery import registry
from cystore.celery.base import duty_leases
from cystore.celery.base.duty_leases import Coordination, coordination_of
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties import duty_runs, ticks
from cystore.celery.duties.duty_runs import ALL, REPUT
from cystore.celery.redis_urls import RedisAwayError, RedisLocation
from cystore.services.duty_table import Outcome
from tests.celery.conftest import ROOT, take_the_place
from tests.support.celery.work import add
from tools.redis_server import Redis, redis_server

SECRET = "a-secret-of-ours"


def app_on(redis_url: str, backend: str, **settings: object) -> Celery:
    app = Celery("away", broker="memory://", backend=backend, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_redis_url=redis_url, **settings)
    return app


def ping(there: Coordination) -> bool:
    return there.call(lambda client: client.ping())


@contextmanager
def impatient(there: Coordination) -> Iterator[None]:
    """The next call asks the server again, as if the time had come."""
    there._retry_at = 0.0
    yield


def test_a_redis_that_is_killed_and_comes_back_empty(url, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    with redis_server(own=True) as redis:
        app = app_on(redis.url, url)
        store, there = app.backend.store, coordination_of(app)
        for _ in range(3):
            store.put("T", b"x")
            assert duty_runs.run(app, REPUT) > 0
        assert store.duties.highest_token("reput") == 3
        os.kill(redis.pid, signal.SIGKILL)
        os.waitid(os.P_PID, redis.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(5):
            store.put("T", b"x")
            assert duty_runs.run(app, REPUT) > 0
        assert store.duties.last("reput").outcome is Outcome.DONE
        assert store.duties.highest_token("reput") == 8
        assert caplog.text.count("is away") == 1
        with redis_server(own=True) as again:
            take_the_place(redis, again)
            with impatient(there):
                store.put("T", b"x")
                assert duty_runs.run(app, REPUT) > 0
            with redis_py.Redis.from_url(again.url) as client:
                assert duty_leases.last_token(client, store_id_of(store), "reput") == 9
    assert caplog.text.count("is back") == 1
    assert store.duties.highest_token("reput") == 9


def test_results_never_wait_for_redis(url, caplog):
    app = app_on("redis://127.0.0.1:1", url, task_always_eager=True, task_store_eager_result=True)
    result = app.tasks[add.name].apply_async((1, 2))
    app.backend.store_result("other", 5, "SUCCESS")
    assert app.AsyncResult("other").get(timeout=60) == 5
    assert result.get(timeout=60) == 3
    assert "Redis at" not in caplog.text, "the store's own paths asked for it"


def test_nobody_asks_a_server_that_was_away_a_moment_ago(monkeypatch):
    there = Coordination(RedisLocation.parse("redis://127.0.0.1:1"))
    tries = []
    monkeypatch.setattr(
        duty_leases,
        "connect",
        lambda location, connect=duty_leases.connect: (tries.append(1), connect(location))[1],
    )
    for _ in range(50):
        with pytest.raises(RedisAwayError, match="ConnectionError"):
            ping(there)
    assert len(tries) == 1


REFUSALS = {
    "no password": ((), "", "NOAUTH|Authentication"),
    "a wrong password": ((), ":wrong@", "WRONGPASS|invalid"),
    "a wrong database": ((), f":{SECRET}@", "out of range"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_redis_that_refuses_us_is_told_once_and_without_the_password(url, caplog, what):
    _, login, said = REFUSALS[what]
    with redis_server("--requirepass", SECRET, own=True) as redis:
        database = "?db=99" if "database" in what else ""
        app = app_on(redis.url.replace("unix://", f"unix://{login}") + database, url)
        store = app.backend.store
        for _ in range(3):
            store.put("T", b"x")
            assert duty_runs.run(app, REPUT) > 0
            with impatient(coordination_of(app)):
                assert duty_runs.run(app, ALL["flush"]) is not None
    refused = [record for record in caplog.records if "refuses us" in record.message]
    assert len(refused) == 1 and refused[0].levelno == logging.ERROR
    assert any(word in caplog.text for word in said.split("|"))
    assert SECRET not in caplog.text and "wrong@" not in caplog.text


def test_a_user_who_may_not_run_scripts_is_told_so(url, caplog):
    with redis_server(own=True) as redis:
        with redis_py.Redis.from_url(redis.url) as admin:
            admin.acl_setuser(
                "poor", enabled=True, passwords=[f"+{SECRET}"], keys=["other:*"], commands=["+@all", "-eval"]
            )
        app = app_on(redis.url.replace("unix://", f"unix://poor:{SECRET}@"), url)
        store = app.backend.store
        for _ in range(3):
            store.put("T", b"x")
            assert duty_runs.run(app, REPUT) > 0
            with impatient(coordination_of(app)):
                duty_runs.run(app, ALL["flush"])
    assert caplog.text.count("refuses us") == 1
    assert "NoPermissionError" in caplog.text and "eval" in caplog.text.lower()
    assert SECRET not in caplog.text


def test_a_cluster_is_refused(url, caplog, tmp_path):
    with redis_server("--cluster-enabled", "yes", "--port", "0", own=True) as redis:
        app = app_on(redis.url, url)
        app.backend.store.put("T", b"x")
        assert duty_runs.run(app, REPUT) > 0
    assert "is a Cluster, which is not supported" in caplog.text


def test_a_broker_that_is_away_gets_no_ticks(url):
    """Seen: a traceback in a worker's log. The next fan_out sends them."""
    app = Celery("away", broker="redis://127.0.0.1:1", backend=url, set_as_current=False)
    app.conf.update(result_backend_thread_safe=True, cystore_redis_url="")
    app.backend.store.put("T", b"x")
    assert duty_runs.due_here(app.backend.store, 0.0), "there is something to send"
    assert ticks.send_ticks(app) == 0


def test_many_waits_for_unknown_ids_take_one_connection(url):
    """Seen: 200 waits looked for other homes with a connection each, and took a third of the throughput."""
    with redis_server(own=True) as redis:
        reader = app_on(redis.url, url).backend.elsewhere.reader()
        begin, answers = threading.Barrier(20), []

        def ask() -> None:
            begin.wait()
            answers.append(reader.ask_around(["of nobody"]))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (answers, len(reader._lines)) == ([{}] * 20, 1)


def test_a_heartbeat_says_nothing_to_a_redis_that_is_away(url):
    app = app_on("redis://127.0.0.1:1", url)
    with pytest.raises(RedisAwayError):
        coordination_of(app).call(lambda client: registry.live_stores(client))


def documented_user(redis: Redis, page: str, words: str) -> str:
    """Makes a user with the rights that a page says behind these words; its URL."""
    text = (ROOT / "docs" / page).read_text()
    commands = re.findall(r"`([a-z]+)`", text[text.index(words) :].split("\n\n")[0])
    with redis_py.Redis.from_url(redis.url) as admin:
        given = ["-@all", *(f"+{command}" for command in commands)]
        admin.acl_setuser("own", enabled=True, passwords=[f"+{SECRET}"], keys=["cystore:*"], commands=given)
    return redis.url.replace("unix://", f"unix://own:{SECRET}@") + "?db=1"


def test_a_user_with_the_documented_rights_is_enough(url, caplog):
    with redis_server(own=True) as redis:
        app = app_on(documented_user(redis, "celery-duties.md", "a Redis user for the duties needs"), url)
        store, there = app.backend.store, coordination_of(app)
        store_id = store_id_of(store)
        for duty in ALL.values():
            assert duty_runs.run(app, duty) is not None
        there.call(lambda client: registry.heartbeat(client, store_id, store, "w"))
        assert there.call(lambda client: registry.live_stores(client)) == [store_id]
        assert there.call(lambda client: registry.due_ticks(client, [store_id], {"reput": 1.0}, 0)) == {
            store_id: ["reput"]
        }
        (status,) = there.call(registry.fleet)
        assert status.live
        assert there.call(lambda client: duty_leases.last_token(client, store_id, "reput")) == 1
    assert "refuses us" not in caplog.text
