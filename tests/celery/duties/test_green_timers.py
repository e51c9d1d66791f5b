"""Goal: a shutdown under eventlet does not wait for a greenlet whose connection it has closed. Method: the timers of
both green pools and the read service in a fresh interpreter; the order of a worker's steps."""

from __future__ import annotations

import pytest

from cystore.celery.duties.worker_steps import DutyStep, ReadStep, StoreStep
from tests.celery.conftest import PATIENCE_S, Fleet
from tests.celery.results.test_store_away import ready
from tests.support.celery.servers import late_redis
from tests.support.isolated import fresh
from tools.redis_server import redis_server

pytest.importorskip("gevent")
pytest.importorskip("eventlet")


def a_call_that_is_ended(library: str) -> list[int]:
    from tests.support.isolated.green import patched

    green = patched(library)

    import importlib
    from types import SimpleNamespace

    from cystore.celery.base.green_timers import end_heartbeats

    timer = importlib.import_module(f"celery.concurrency.{library}").Timer()
    runs: list[int] = []
    heart = SimpleNamespace(tref=timer.call_repeatedly(0.01, runs.append, (1,)))
    while len(runs) < 3:
        green.sleep(0.01)
    end_heartbeats(SimpleNamespace(timer=timer, heart=heart))
    ended, later = len(runs), []
    timer.call_after(0.05, later.append, (1,))  # the next run would come before it
    while not later:
        green.sleep(0.01)
    return [len(runs) - ended, len(timer.queue)]


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_repeated_call_ends(library):
    """Seen: of 300 eventlet workers two hung for ever in a warm shutdown. Heartbeats came although Celery had cancelled
    them: a cancelled timer of Celery's green pools ends only the first run of a repeated call."""
    assert fresh.run(a_call_that_is_ended, library)[0] == 0


def a_read_service_that_is_ended(library: str, store: str, broker: str) -> list[bool]:
    """Whether each of its threads lives on."""
    from tests.support.isolated.green import patched

    green = patched(library)

    from types import SimpleNamespace

    from celery import Celery

    from cystore.celery.base.duty_leases import connect
    from cystore.celery.duties import answering, answers
    from cystore.celery.redis_urls import RedisLocation

    answering.JOIN_S, answers.TAKE_S = 30.0, 300.0
    parent = SimpleNamespace(app=Celery("read", broker=broker, backend=f"cystore://{store}"), steps=[])
    host = answering.ReadHost()
    host.start(parent)
    threads = [one._thread._thread for one in host._threads]
    with connect(RedisLocation.parse(broker)) as redis:
        while not any(one["cmd"] == "blmove" for one in redis.client_list()):
            green.sleep(0.01)
    host.shutdown(parent)
    return [thread.is_alive() for thread in threads]


@pytest.mark.parametrize("library", ["eventlet"])
def test_a_read_service_ends_at_once(library, tmp_path):
    """Seen: an eventlet worker ended 5 s late. The service closed its connection under the greenlet that waited for a
    request, and eventlet never woke it."""
    with redis_server(own=True) as redis:
        alive = fresh.run(a_read_service_that_is_ended, library, f"{tmp_path}/store", redis.broker_url)
    assert alive == [False, False]


def steps_of_a_worker(url: str) -> list[str]:
    from celery import Celery

    app = Celery("steps", broker="memory://", backend=url)
    assert app.backend  # it adds its steps
    worker = app.Worker(pool="solo", hostname="w@here")
    (consumer,) = (step.obj for step in worker.steps if step.alias == "Consumer")
    return [type(step).__name__ for step in consumer.steps]


def test_our_steps_end_before_the_heartbeat(url):
    """Seen: they ended between the heartbeat and its connection, and took seconds for that. A worker is made in a
    process of its own: in this one, waits for results would be refused from then on."""
    order = fresh.run(steps_of_a_worker, url)
    for ours in (StoreStep, ReadStep, DutyStep):
        assert order.index(ours.__name__) > order.index("Heart"), order


@pytest.mark.parametrize("library", ["eventlet"])
def test_a_warm_shutdown_beside_a_redis_that_answers_heartbeats_late(tmp_path, library):
    """Seen: half of such workers hung for ever, with any result backend: heartbeats continued during the shutdown,
    Celery closed their connection under one of them and waited for it, and eventlet never woke it."""
    with redis_server(own=True) as redis, late_redis(redis.url.removeprefix("unix://"), 1.9) as url:
        fleet = Fleet(tmp_path, url)
        try:
            worker = fleet.start("--concurrency=2", pool=library)
            ready(worker)
            worker.ask_to_stop()
            assert worker.process.wait(PATIENCE_S) == 0
        finally:
            fleet.stop()
