"""Goal: tasks with an ETA wait in the store, run once, and can be listed, moved and withdrawn. Method: a real Redis,
real workers and kills; messages are looked at in the store and in the broker."""

from __future__ import annotations

import json
import os
import signal
import weakref
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery, chain, chord, group, states
from celery.exceptions import ImproperlyConfigured, TaskRevokedError
from celery.utils import uuid

from cystore.celery import history, install
from cystore.celery.base import events
from cystore.celery.base.identity import store_id_of
from cystore.celery.base.queues import queue_of_store
from cystore.celery.eta import keeping, remote, sending, waiting
from cystore.celery.lifecycle import recorder, task_lives
from cystore.celery.stores import close_shared
from cystore.clock import now_ms
from cystore.layout import SCHEDULE_TOPIC
from tests.celery.conftest import PATIENCE_S, fleet_in, take_the_place, wait_until
from tests.celery.routing.test_remote import client_of
from tests.support.celery import work
from tools.redis_server import redis_server

SETTINGS = {keeping.SETTING: 0.5}
SOON_S, LATER_S = 2, 3600


@pytest.fixture
def eta_fleet(tmp_path):
    """A Redis and a store; ETAs wait in the store from half a second on."""
    with fleet_in(tmp_path, **SETTINGS) as fleet:
        yield fleet


def events_of(fleet, task_id: str) -> list[str]:
    """The events of a task, oldest first."""
    return [message.tags for message in fleet.backend.store.query(events.EVENTS, task_id)][::-1]


def queued(fleet) -> int:
    return queued_at(fleet, work.QUEUE)


def queued_at(fleet, queue: str) -> int:
    """The messages that wait in a queue of the broker."""
    with fleet.app.connection_for_read() as connection:
        return int(connection.default_channel.client.llen(queue))


def ids_waiting(fleet) -> list[str]:
    return [task.task_id for task in waiting.waiting(fleet.backend.store)]


def test_a_task_waits_in_the_store_and_not_in_the_broker(eta_fleet):
    result = eta_fleet.task(work.add).apply_async((2, 3), countdown=SOON_S)
    due_ms = now_ms() + SOON_S * 1000
    assert ids_waiting(eta_fleet) == [result.id] and queued(eta_fleet) == 0
    eta_fleet.start("--concurrency=1")
    assert result.get(timeout=PATIENCE_S) == 5
    assert now_ms() >= due_ms - 1000
    ends = {events.FIRED, events.SUCCEEDED}
    wait_until(lambda: ends <= set(events_of(eta_fleet, result.id)), "both ends are logged")
    seen = events_of(eta_fleet, result.id)
    seen.remove(events.FIRED)  # noted behind the sending, and a worker may be faster
    assert seen == [events.SCHEDULED, events.SENT, events.RECEIVED, events.STARTED, events.SUCCEEDED]
    assert not ids_waiting(eta_fleet)


def test_short_waits_and_tasks_without_an_eta_go_to_the_broker(eta_fleet):
    eta_fleet.task(work.add).apply_async((1, 1), countdown=0.1)
    eta_fleet.task(work.add).delay(1, 1)
    assert not ids_waiting(eta_fleet) and queued(eta_fleet) == 2


def test_a_worker_that_is_killed_while_tasks_wait_loses_none(eta_fleet, tmp_path):
    """Native: the killed worker has the message, which comes again after the visibility timeout."""
    runs = tmp_path / "runs"
    first = eta_fleet.start("--concurrency=1")
    wait_until(lambda: "ready." in first.log.read_text(), "the worker is ready")
    send = eta_fleet.task(work.text_of).apply_async
    results = [send((1, str(runs)), countdown=LATER_S) for _ in range(10)]
    first.kill()
    eta_fleet.start("--concurrency=2")
    assert all(waiting.fire(eta_fleet.app, eta_fleet.backend.store, result.id) for result in results)
    assert [len(result.get(timeout=PATIENCE_S)) for result in results] == [1] * 10
    assert runs.read_text() == "ran\n" * 10


def test_revoke_withdraws_with_no_worker_up(eta_fleet, tmp_path):
    runs = str(tmp_path / "runs")
    send = eta_fleet.task(work.text_of).apply_async
    one, two, three, kept = (send((1, runs), countdown=LATER_S) for _ in range(4))
    stamped = send(
        (1, runs), countdown=LATER_S, headers={"stamped_headers": ["batch"], "stamps": {"batch": ["b7"]}}
    )
    one.revoke()
    eta_fleet.app.control.revoke([two.id, three.id, uuid()])
    eta_fleet.app.control.revoke_by_stamped_headers({"batch": "b7"})
    assert ids_waiting(eta_fleet) == [kept.id]
    assert [result.state for result in (one, two, three, stamped)] == [states.REVOKED] * 4
    with pytest.raises(TaskRevokedError):
        one.get(timeout=PATIENCE_S)
    assert events_of(eta_fleet, one.id) == [events.SCHEDULED, events.SENT, events.CANCELLED]
    assert queued(eta_fleet) == 0


def test_a_withdrawn_part_ends_its_chord(eta_fleet):
    tasks = [eta_fleet.task(work.add).s(1, number).set(countdown=LATER_S) for number in range(2)]
    result = chord(tasks, eta_fleet.task(work.total).s(), app=eta_fleet.app).apply_async()
    eta_fleet.start("--concurrency=1")
    result.parent.results[0].revoke()
    result.parent.results[1].revoke()
    with pytest.raises(Exception, match=r"revoked|raised"):
        result.get(timeout=PATIENCE_S)


def test_workflows_keep_their_meaning(eta_fleet):
    add, total = eta_fleet.task(work.add), eta_fleet.task(work.total)
    eta_fleet.start("--concurrency=2")
    parts = group(add.s(1, number).set(countdown=1) for number in range(3))
    ends = [
        chain(add.s(1, 1).set(countdown=1), add.s(5).set(countdown=1)).apply_async(),
        chord(parts, total.s().set(countdown=1)).apply_async(),
        parts.apply_async(),
    ]
    assert [end.get(timeout=PATIENCE_S) for end in ends] == [7, 6, [1, 2, 3]]


def test_a_retry_waits_in_the_store(eta_fleet):
    eta_fleet.start("--concurrency=1")
    result = eta_fleet.task(work.retries_after).delay(1)
    assert result.get(timeout=PATIENCE_S) == 1
    assert events_of(eta_fleet, result.id).count(events.SCHEDULED) == 1


def test_tasks_wait_for_a_broker_that_is_away(tmp_path):
    with redis_server(own=True) as broker, fleet_in(tmp_path, **SETTINGS) as fleet:
        fleet.app.conf.broker_url = fleet.environment[work.BROKER] = broker.broker_url
        result = fleet.task(work.add).apply_async((2, 3), countdown=SOON_S)
        store = fleet.backend.store
        os.kill(broker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
        wait_until(lambda: store.deliver() or sending.is_due(store), "the message is due")
        assert sending.send_due(fleet.app, store) == (0, False)
        assert sending.send_due(fleet.app, store) == (0, False)
        assert waiting.TOPIC in store.holds(), "retention leaves it alone"
        with redis_server(own=True) as new:
            take_the_place(broker, new)
            assert sending.send_due(fleet.app, store)[0] == 1
            assert waiting.TOPIC not in store.holds()
            fleet.start("--concurrency=1")
            assert result.get(timeout=PATIENCE_S) == 5


def test_a_publisher_without_a_store_reaches_its_home(eta_fleet, tmp_path):
    runs, home = str(tmp_path / "runs"), store_id_of(eta_fleet.backend.store)
    app = client_of(eta_fleet, cystore_home=home, **SETTINGS)
    send = app.tasks[work.text_of.name].apply_async
    first, second = send((1, runs), countdown=LATER_S), send((1, runs), countdown=LATER_S)
    due = app.tasks[work.add.name].apply_async((1, 1), countdown=2)
    assert queued(eta_fleet) == 0
    eta_fleet.start("--concurrency=1")
    wait_until(lambda: {first.id, second.id} <= set(ids_waiting(eta_fleet)), "the home has them")
    first.revoke()
    wait_until(lambda: ids_waiting(eta_fleet) == [second.id], "the home withdrew one")
    assert eta_fleet.app.AsyncResult(due.id).get(timeout=PATIENCE_S) == 2
    record = bytes(eta_fleet.backend.store.query(SCHEDULE_TOPIC, second.id)[0].body)
    remote.send(app, home, record, now_ms() + LATER_S * 1000)
    remote.send(app, home, b"no message", now_ms())
    wait_until(lambda: not queued_at(eta_fleet, queue_of_store(home)), "the home took what came again")
    eta_fleet.task(work.add).delay(1, 1).get(timeout=PATIENCE_S)
    assert ids_waiting(eta_fleet) == [second.id], "a message that was delivered twice waits once"


# --------------------------------------------------------------------------------------- without a worker


@pytest.fixture
def app(url):
    """An app with a broker in this process's memory, which all apps share: it has a queue of its own."""
    app = Celery("eta", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(SETTINGS, task_default_queue=uuid())
    app.task(work.add.run, shared=False, name="add")
    yield app
    close_shared()


def fire_all(app: Celery) -> None:
    """Makes everything due, and sends it."""
    store = app.backend.store
    for task in list(waiting.waiting(store)):
        assert waiting.fire(app, store, task.task_id)
    wait_until(lambda: store.deliver() or sending.is_due(store), "the messages are due")
    while sending.send_due(app, store)[0]:
        pass


def received(app: Celery, queue: str = ""):
    """The next message of a queue."""
    queue = queue or app.conf.task_default_queue
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as simple:
        return simple.get_nowait()


def test_the_broker_gets_the_message_that_it_would_have_got(app):
    app.conf.task_queue_max_priority = 9
    slow = f"slow-{uuid()}"
    options = {
        "priority": 5,
        "compression": "zlib",
        "serializer": "yaml",
        "headers": {"mine": "x"},
        "queue": slow,
    }
    app.tasks["add"].apply_async((2, 3), eta=datetime.now(UTC), **options)
    native = received(app, slow)
    app.tasks["add"].apply_async((2, 3), countdown=LATER_S, **options)
    fire_all(app)
    kept = received(app, slow)
    assert (kept.body, kept.content_type, kept.content_encoding) == (
        native.body, native.content_type, native.content_encoding,
    )  # fmt: skip
    other = {"id", "root_id", "eta"}
    assert {name: kept.headers[name] for name in kept.headers.keys() - other} == {
        name: native.headers[name] for name in native.headers.keys() - other
    }
    other = {"delivery_tag", "correlation_id", "reply_to"}
    assert {name: kept.properties[name] for name in kept.properties.keys() - other} == {
        name: native.properties[name] for name in native.properties.keys() - other
    }


def test_a_pickled_message_waits(app):
    app.conf.update(accept_content=["pickle", "json"])
    app.tasks["add"].apply_async(({1, 2}, b"\0\xff"), countdown=LATER_S, serializer="pickle")
    (task,) = waiting.waiting(app.backend.store)
    assert task.message.content_type == "application/x-python-serialize"
    fire_all(app)
    message = received(app)
    message.accept = {"application/x-python-serialize"}
    assert message.decode()[0] == [{1, 2}, b"\0\xff"] or message.decode()[0] == ({1, 2}, b"\0\xff")


def test_the_time_to_live_counts_again_when_it_is_sent(app, monkeypatch):
    """A message's `expiration` is the time until its task expires, from now on; not from when it was made."""
    sent = datetime.now(UTC)
    app.tasks["add"].apply_async((1, 1), countdown=LATER_S, expires=sent + timedelta(seconds=2 * LATER_S))
    (task,) = waiting.waiting(app.backend.store)
    assert 2 * LATER_S - 60 < task.message.properties["expiration"] <= 2 * LATER_S
    monkeypatch.setattr(sending, "now_ms", lambda: int((sent.timestamp() + LATER_S) * 1000))
    fire_all(app)
    left_ms = int(received(app).properties["expiration"])
    assert left_ms == pytest.approx(LATER_S * 1000, abs=2000)


def test_signals_come_when_the_message_is_kept(app):
    from celery import signals

    seen: list[str] = []

    def before(sender, **_):
        seen.append(f"before {sender} {len(list(waiting.waiting(app.backend.store)))}")

    def after(sender, **_):
        seen.append(f"after {sender} {len(list(waiting.waiting(app.backend.store)))}")

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert seen == ["before add 0", "after add 1"]


def test_a_broker_that_delays_messages_itself_is_left_alone(app):
    app.tasks["add"].apply_async((1, 1), countdown=LATER_S, exchange="celery_delayed_27", routing_key="x")
    assert not list(waiting.waiting(app.backend.store))


def test_what_the_broker_always_refuses_ends_as_a_failure_and_stops_nothing(app):
    bad = app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    good = app.tasks["add"].apply_async((1, 1), countdown=LATER_S + 1)
    store = app.backend.store
    waiting.fire(app, store, bad.id)
    record = store.query(SCHEDULE_TOPIC, bad.id)[0]
    fields = json.loads(bytes(record.body))
    assert waiting.move(app, store, bad.id, now_ms() + LATER_S * 1000)
    fields["message"]["compression"] = "no such compression"
    store.cancel(waiting.TOPIC, bad.id)
    store.put(waiting.TOPIC, json.dumps(fields).encode(), keys=(bad.id,), deliver_at_ms=now_ms() + 1000)
    store.put(waiting.TOPIC, b"no message of a task", deliver_at_ms=now_ms() + 1000)
    fire_all(app)
    for _ in range(sending.TRIES):
        sending.send_due(app, store)
    assert app.AsyncResult(bad.id).state == states.FAILURE
    assert received(app).headers["id"] == good.id


@pytest.mark.parametrize("value", [-1, "soon", True, float("nan"), [3]])
def test_a_setting_that_makes_no_sense_is_refused(url, value):
    app = Celery("eta", broker="memory://", backend=url, set_as_current=False)
    app.conf[keeping.SETTING] = value
    with pytest.raises(
        ImproperlyConfigured, match=f'{keeping.SETTING} must be seconds, from 0 on, or "never"'
    ):
        _ = app.backend


def test_install_keeps_etas_from_half_a_minute_on(url):
    app = Celery("eta", broker="memory://", backend=url, set_as_current=False)
    app.task(work.add.run, shared=False, name="add")
    install(app)
    app.tasks["add"].apply_async((1, 1), countdown=29)
    kept = app.tasks["add"].apply_async((1, 1), countdown=31)
    assert [task.task_id for task in waiting.waiting(app.backend.store)] == [kept.id]
    install(app)
    app.conf[keeping.SETTING] = "never"
    app.tasks["add"].apply_async((1, 1), countdown=31)
    assert len(list(waiting.waiting(app.backend.store))) == 1


def test_an_app_that_has_sent_tasks_is_too_late(url):
    app = Celery("eta", broker="memory://", backend=url, set_as_current=False)
    app.task(work.add.run, shared=False, name="add", ignore_result=True)
    app.tasks["add"].apply_async((1, 1), countdown=31)
    with pytest.raises(ImproperlyConfigured, match="has sent tasks before"):
        install(app)


def test_messages_that_the_log_keeps_are_kept_too(url, monkeypatch):
    """`cystore_lifecycle_payload` and a durable ETA stand around the same function."""
    monkeypatch.setattr(recorder, "_logs", weakref.WeakKeyDictionary())  # Celery's signal names no app
    app = Celery("eta", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(SETTINGS, cystore_lifecycle_payload="message")
    app.task(work.add.run, shared=False, name="add")
    result = app.tasks["add"].apply_async((1, 1), countdown=LATER_S)
    (sent,) = [one for one in app.backend.store.query(events.EVENTS, result.id) if one.tags == events.SENT]
    assert json.loads(bytes(sent.body))["message"]["headers"]["id"] == result.id
    assert [task.task_id for task in waiting.waiting(app.backend.store)] == [result.id]


def test_the_command_lists_moves_fires_and_withdraws(run, rows, url):
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(SETTINGS)
    app.task(work.add.run, shared=False, name="add")
    send = app.tasks["add"].apply_async
    late, soon, never = (send((1, 1), countdown=LATER_S * hours) for hours in (3, 1, 2))
    told = [row["task_id"] for row in rows("eta")]
    assert told == [soon.id, never.id, late.id]
    assert "add" in run("eta", "--name", "add").stdout and "queue=celery" in run("eta").stdout
    assert run("eta", "--name", "other", code=1)
    run("eta", "cancel", never.id)
    assert "does not wait" in run("eta", "cancel", never.id, code=1).stdout
    run("eta", "move", late.id, "10m")
    assert [row["task_id"] for row in rows("eta")] == [late.id, soon.id]
    told_moves = history.events(app.backend.store, task_id=late.id, states=(events.SCHEDULED,))
    assert len(list(told_moves)) == 2  # when it was sent, and when it was moved
    life = task_lives.life_of(app.backend.store, late.id)
    assert life is not None and life.due_ms == rows("eta")[0]["due_ms"]
    run("eta", "fire", soon.id)
    assert rows("eta")[0]["task_id"] == soon.id
    assert "no time zone" in run("eta", "move", late.id, "2099-01-01T00:00", code=2).output
    assert "neither an ISO 8601 time nor a duration" in run("eta", "move", late.id, "soon", code=2).output
    assert app.AsyncResult(never.id).state == states.REVOKED


def test_the_command_makes_no_store(run, rows, url):
    """A mistyped path is told, not made."""
    for words in (["cancel", "x"], ["fire", "x"], ["move", "x", "2h"]):
        assert "there is no store here" in run("eta", *words, code=2).output
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    assert app.backend.store.path.exists()
    for words in (["cancel", ""], ["fire", ""], ["move", "", "2h"]):
        assert "must not be empty" in run("eta", *words, code=2).output
