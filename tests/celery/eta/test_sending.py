"""Goal: whatever waits in the store, and whatever its broker says, no task is lost and none stops the others. Method:
one app in this process, which sends, delivers and receives itself; a Redis of its own is made full or a replica."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.utils import uuid

from cystore.celery import homes, install
from cystore.celery.duties import duty_runs
from cystore.celery.duties.main_process import Keeper
from cystore.celery.eta import keeping, remote, sending, waiting
from cystore.celery.stores import close_shared
from cystore.clock import now_ms
from cystore.services.duty_table import DutyRun, Outcome
from tests.celery.conftest import wait_until
from tests.support.celery import work
from tests.support.isolated import fresh
from tools.redis_server import redis_server

SETTINGS = {keeping.SETTING: 0.5}
LATER_S, WEEK_S = 3600, 7 * 24 * 3600


def app_of(url: str, broker: str = "memory://", **settings: object) -> Celery:
    app = Celery("eta", broker=broker, backend=url, set_as_current=False)
    app.conf.update(SETTINGS, task_default_queue=uuid(), **settings)
    app.task(work.add.run, shared=False, name="add")
    app.task(work.add.run, shared=False, name="ignores", ignore_result=True)
    return app


@pytest.fixture
def app(url):
    yield app_of(url)
    close_shared()


def due_ids(app: Celery) -> list[str]:
    return [task.task_id for task in waiting.waiting(app.backend.store)]


def deliver(app: Celery) -> None:
    """Makes everything due, and delivers it."""
    store = app.backend.store
    for task_id in due_ids(app):
        waiting.fire(app, store, task_id)
    wait_until(lambda: (store.deliver(), not due_ids(app))[1], "all messages are due")


@pytest.mark.parametrize(
    "command",
    [
        ("CONFIG", "SET", "maxmemory", "1"),
        ("REPLICAOF", "127.0.0.1", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "3"),
    ],
    ids=["full", "a replica", "without replicas"],
)
def test_a_broker_that_takes_nothing_for_the_moment_loses_no_task(url, caplog, command):
    with redis_server(own=True) as redis:
        app = app_of(url, redis.broker_url)
        result = app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
        with app.connection_for_write() as connection:
            connection.default_channel.client.execute_command(*command)
        deliver(app)
        store = app.backend.store
        for _ in range(2 * sending.TRIES):
            assert sending.send_due(app, store) == (0, False)
        assert result.state == states.PENDING
        assert sum("wait for the broker" in line for line in caplog.messages) == 1
        with app.connection_for_write() as connection:
            client = connection.default_channel.client
            client.execute_command("REPLICAOF", "NO", "ONE")
            client.execute_command("CONFIG", "SET", "maxmemory", "0")
            client.execute_command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert sending.send_due(app, store) == (1, True)
        close_shared()


def test_a_turn_does_not_wait_for_a_broker_as_long_as_the_app_would(url):
    """The lease of the duty would be lost meanwhile; a policy may even wait for ever."""
    tries: list[object] = []
    policy = {
        "max_retries": 5, "interval_start": 0, "interval_step": 0, "interval_max": 0,
        "errback": lambda error, interval: tries.append(error),
    }  # fmt: skip
    app = app_of(url, "redis://127.0.0.1:1/0", task_publish_retry_policy=policy)
    app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    deliver(app)
    assert sending.send_due(app, app.backend.store) == (0, False)
    assert not tries
    close_shared()


def test_a_store_is_not_quiet_while_a_due_task_was_not_sent(app):
    """Nothing need be appended when the broker comes back, or when a turn left tasks to the next one."""
    store = app.backend.store
    app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    deliver(app)
    store.dispatch()
    assert duty_runs.quiet_s(store, 0.1) == 0.1
    assert sending.send_due(app, store) == (1, True)
    store.dispatch()
    assert duty_runs.quiet_s(store, 0.1) > 0.1


def test_a_turn_that_its_bound_ended_is_followed_by_the_next_one_at_once(app, monkeypatch):
    """Seen: a turn of half a second each second, so due tasks came late although nothing else was to do."""
    one_step = duty_runs.DELIVER_DELAYED._replace(bound_s=-1.0)
    monkeypatch.setitem(duty_runs.ALL, one_step.name, one_step)
    monkeypatch.setattr(sending, "STEP_MESSAGES", 2)
    store = app.backend.store
    for ticks in (False, True):
        for _ in range(5):
            app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
        deliver(app)
        keeper = Keeper(app, store, "w@here", ("worker",), ticks=ticks)
        keeper._began -= 1000.0
        store.duties.ran(one_step.name, DutyRun(0, 0, 0, Outcome.DONE))  # long ago
        for left in (True, True, True):
            keeper.turn()
            assert duty_runs.has_left_work(store) == keeper._goes_on == left
        assert not sending.is_due(store)
        keeper.turn()
        assert not keeper._goes_on, "nothing is left"


HOSTILE = {
    "no callbacks": {"body": '[[], {}, {"errbacks": 7, "chord": 5, "chain": 3}]'},
    "no group": {"headers": {"id": "bad", "task": "add", "group": {"a": 1}, "errbacks": 7}},
    "no home": {"headers": {"id": "bad", "task": "add", "cystore_home": "nowhere"}},
    "no number": {"headers": {"id": "bad", "task": "add", "x": {"__type__": "decimal", "__value__": "zz"}}},
    "no id": {"headers": {"id": "x" * 50_000, "task": "add"}},
    "no time": {"properties": {"expiration": "soon", "exchange": 4, "timeout": "q"}},
}


def test_messages_that_make_no_sense_stop_no_other(app):
    store = app.backend.store
    for changed in HOSTILE.values():
        message = {
            "headers": {"id": "bad", "task": "add"}, "properties": {}, "body": "[[], {}, {}]",
            "content_type": "application/json", "content_encoding": "utf-8", "compression": "none such",
            "exchange": "", "routing_key": "x", **changed,
        }  # fmt: skip
        body = json.dumps({"message": message, "declare": []}).encode()
        store.put(waiting.TOPIC, body, keys=("bad",), deliver_at_ms=now_ms() + 1)
    result = app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    wait_until(lambda: (store.deliver(), due_ids(app) == [result.id])[1], "the others are due")
    deliver(app)
    for _ in range(2 + len(HOSTILE) * sending.TRIES):
        sending.send_due(app, store)
    assert not sending.is_due(store)
    with (
        app.connection_for_read() as connection,
        connection.SimpleQueue(app.conf.task_default_queue) as queue,
    ):
        assert queue.get_nowait().headers["id"] == result.id


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_a_time_without_a_zone_is_what_a_worker_takes_it_for(app, zone):
    app.conf.timezone = zone
    from celery.worker.request import Request
    from kombu.message import Message

    eta = (datetime.now(UTC) + timedelta(days=2)).replace(tzinfo=None)
    app.tasks["add"].apply_async((1, 1), eta=eta)
    (task,) = waiting.waiting(app.backend.store)
    message = Message(
        body=task.message.body, headers=dict(task.headers), content_type="application/json",
        content_encoding="utf-8", delivery_info={}, properties={},
    )  # fmt: skip
    worker = Request(message, app=app, headers=message.headers, decoded=True, body=((1, 1), {}, {}))
    assert task.due_ms == int(worker.eta.timestamp() * 1000)


def test_a_process_that_ignores_its_first_result_is_told(app, caplog):
    """Celery makes no backend for it, so nothing of ours is there yet."""
    app.tasks["ignores"].apply_async((1, 1), countdown=LATER_S)
    assert sum("Call cystore.celery.install(app)" in line for line in caplog.messages) == 1
    app.tasks["ignores"].apply_async((1, 1), countdown=LATER_S)
    assert len(due_ids(app)) == 1


def test_after_install_the_first_ignored_result_waits_as_well(app, caplog):
    install(app)
    app.tasks["ignores"].apply_async((1, 1), countdown=LATER_S)
    assert len(due_ids(app)) == 1 and not any("install(app)" in line for line in caplog.messages)


def test_what_a_home_can_never_keep_fails_instead_of_coming_again(app):
    """A publisher elsewhere cannot know the limits of its home's store."""
    store = app.backend.store
    app.tasks["add"].apply_async((1, 1), countdown=LATER_S, task_id="far")
    (task,) = waiting.waiting(store)
    record = waiting.body_of(task.message, task.declare).decode()
    app.control.revoke("far")
    due_ms = now_ms() + (store.config.timer_max_delay_s + WEEK_S) * 1000
    record = record.replace('"far"', '"farther"')
    keep = app.tasks[remote.KEEP]
    done = keep.apply((homes.own_id(app.backend), record, due_ms))
    assert done.state == states.FAILURE and "timer_max_delay_s" in str(done.result)
    assert app.AsyncResult("farther").state == states.FAILURE


def sends_and_revokes(broker: str, library: str) -> list:
    from tests.support.isolated.green import patched

    green = patched(library)
    import uuid as ids

    from celery import Celery

    home = str(ids.uuid4())
    app = Celery("test", broker=broker, backend="cystore://")
    # A revoke of Celery takes two connections at once, and waits for ever where all revokes have one.
    app.conf.update(cystore_durable_eta_after_s=1, cystore_home=home, broker_pool_limit=50)
    errors = []

    def send() -> None:
        try:
            app.send_task("add", (1, 1), countdown=100).revoke()
        except Exception as error:  # noqa: BLE001 - the test's answer
            errors.append(repr(error))

    for one in [green.spawn(send) for _ in range(20)]:
        getattr(one, "join", getattr(one, "wait", None))()
    with app.connection_for_read() as connection:
        return [errors, connection.default_channel.client.llen(f"cystore.{home}")]


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_greenlets_without_a_store_reach_their_home(library):
    """A socket belongs to the hub that opened it, so no other thread sends."""
    pytest.importorskip(library)
    with redis_server(own=True) as redis:
        assert fresh.run(sends_and_revokes, redis.broker_url, library) == [[], 40]


def test_one_connection_is_enough_for_a_publisher_without_a_store():
    """The producer that `apply_async` took from the pool sends the message; another one may never come free."""
    home = str(uuid4())
    app = app_of("cystore://", cystore_home=home, broker_pool_limit=1)
    app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    with app.connection_for_read() as connection, connection.SimpleQueue(f"cystore.{home}") as queue:
        assert queue.get_nowait().headers["task"] == remote.KEEP


def test_after_install_a_process_that_only_revokes_reaches_the_store(app, url):
    result = app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    other = Celery("other", broker="memory://", backend=url, set_as_current=False)
    install(other)
    other.control.revoke(result.id)
    assert not due_ids(app) and result.state == states.REVOKED
