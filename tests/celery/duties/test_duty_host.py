"""Goal: a worker takes part in the duties of its store by having it, and in nobody else's. Method: the bootstep's
parts in this process; the fleet tests have them in workers."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore.celery import tasks  # a worker that takes the ticks
from cystore.celery.base import greenlets
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties.duty_news import TELL_S
from cystore.celery.duties.duty_runs import ALL, IDLE_S, QUIET_S, REPUT, quiet_s, run
from cystore.celery.duties.main_process import LOOK_S, Keeper, ReputLoop
from cystore.celery.duties.worker_steps import DutyStep, take_part
from cystore.layout import DUTIES, DUTY_WORDS
from cystore.services.duty_table import Outcome
from tests.celery.conftest import wait_until


@pytest.fixture
def app(url) -> Celery:
    app = Celery("host", broker="memory://", backend=url, set_as_current=False)
    app.conf.result_backend_thread_safe = True
    return app


def takes_part(app: Celery) -> bool:
    take_part(SimpleNamespace(app=app, use_eventloop=False))
    return DutyStep in app.steps["consumer"]


@pytest.mark.parametrize("chosen", [["other"], None])
def test_a_worker_listens_to_its_store_whatever_its_queues_are(app, chosen):
    app.amqp.queues.select(chosen)
    assert takes_part(app)
    consumed = app.amqp.queues.consume_from
    for name in ("cystore", f"cystore.{store_id_of(app.backend.store)}"):
        assert consumed[name].exchange.name == "", "the broker would keep a binding"
        assert consumed[name].routing_key == name
    assert ("other" if chosen else app.conf.task_default_queue) in consumed


def test_a_worker_without_a_store_takes_no_part():
    app = Celery("host", broker="memory://", backend="cache+memory://", set_as_current=False)
    assert not takes_part(app)
    assert not any(name.startswith("cystore") for name in app.amqp.queues.consume_from)


def test_a_worker_without_a_redis_that_it_can_use_says_why(app, caplog):
    app.conf.cystore_redis_url = "redis+cluster://:secret@host"
    assert not takes_part(app)
    assert "this worker cannot do duties" in caplog.text
    assert "secret" not in caplog.text
    assert "Cluster" in caplog.text


def test_a_worker_in_a_program_whose_store_cannot_be_opened_says_why(app, tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(ImproperlyConfigured, match="not a directory"):
        takes_part(app)


def test_ticks_that_go_well_are_no_news_and_others_are(app, caplog):
    assert takes_part(app)
    log = logging.getLogger("celery.app.trace")
    with caplog.at_level(logging.INFO, log.name):
        for name in ("cystore.reput", "shop.charge"):
            log.info("%(name)s went well", {"name": name})
            log.error("%(name)s failed", {"name": name})
    assert caplog.messages == ["cystore.reput failed", "shop.charge went well", "shop.charge failed"]


def keeper(app: Celery, watched_s: float) -> Keeper:
    made = Keeper(app, app.backend.store, "w@here", ("worker",))
    made._began -= watched_s
    return made


def test_nothing_is_overdue_in_the_first_periods(app):
    assert keeper(app, 0).run_once().done == 0


def test_each_duty_is_done_once_and_then_when_the_store_needs_it(app):
    """Seen: each duty ran once a period, for ever, and asked Redis each time."""
    store, host = app.backend.store, keeper(app, 1000.0)
    assert host.run_once().done == len(ALL)
    assert all(store.duties.last(name).outcome is Outcome.DONE for name in ALL)
    for name in ALL:
        later(store, name, 40.0)
    assert host.run_once().done == 0, "nothing was appended"
    later(store, "checkpoint", -40.0)
    store.put("T", b"x")
    assert host.run_once().done > 0
    again = {name for name in ALL if store.duties.last(name).runs > 1}
    # Another process may have made it durable before; a chord may have been opened.
    assert again | {"flush"} == {"reput", "flush", "chord_sweep"}
    assert store.maintenance.checkpoint_bytes > 0
    assert host.run_once().done == 0, "not before its period is over"
    later(store, "checkpoint", 31.0)
    run(app, ALL["checkpoint"])  # another worker
    store.put("T", b"x")
    store.dispatch()
    host.run_once()
    assert store.duties.last("checkpoint").runs == 2, "somebody else has done it"
    later(store, "checkpoint", 31.0)
    host.run_once()
    assert store.duties.last("checkpoint").runs == 3
    later(store, "scrub", IDLE_S)
    host.run_once()
    assert store.duties.last("scrub").runs == 2, "after minutes also without need"


def test_a_tick_is_done_at_the_next_look_and_counts_once_however_often_it_came(app):
    store, host = app.backend.store, keeper(app, 0)
    for number in range(1000):
        host.ask(REPUT.task, f"id{number}")
        host.ask(tasks.FAN_OUT, f"id{number}")
        host.ask("cystore.unknown", "id")
    assert host.run_once().done == 3
    assert store.duties.last("reput").runs == 1
    assert host.run_once().done == 0


def test_what_was_done_is_one_line_a_minute(app, caplog):
    store, host = app.backend.store, keeper(app, 1000.0)
    with caplog.at_level(logging.INFO, "cystore"):
        for _ in range(20):
            store.put("T", b"x")
            later(store, "reput", 2.0)
            host.run_once()
        assert not caplog.messages
        host._log._tell_at -= TELL_S
        host.run_once()
        host.run_once()
    assert sum("reput 20 x" in line for line in caplog.messages) == len(caplog.messages) == 1


def later(store, duty: str, seconds: float) -> None:
    """As if the last run had been so much earlier."""
    control, number, word = store._attached().control, DUTIES.index(duty), DUTY_WORDS.index("begun_ms")
    control.set_duty_word(number, word, control.duty_word(number, word) - int(seconds * 1000))


def test_the_hosted_loop_dispatches_under_one_lease_and_yields_to_a_newer_one(app):
    store, loop = app.backend.store, ReputLoop(app, app.backend.store)
    for _ in range(3):
        store.put("T", b"x")
        assert loop.run_once().done > 0
    assert store.duties.highest_token("reput") == 1
    assert run(app, REPUT) is None
    with store.duties.step("reput", 2, ttl_ms=60_000):
        pass
    store.put("T", b"x")
    assert loop.run_once().done == 0
    assert loop.run_once().done == 0, "another worker has the lease"
    store.duties.release("reput", 2)
    assert loop.run_once().done > 0
    loop.release()
    assert run(app, REPUT) == 0


def asleep(host: Keeper) -> None:
    """Returns when the next append wakes the thread of the duties."""

    def is_asleep() -> bool:
        host.turn()
        return host._pause_s > LOOK_S

    wait_until(is_asleep, "nobody appends, and the store's threads sleep")


def test_an_idle_host_sleeps_until_an_append_a_tick_or_a_due_time(app):
    """Seen: a look a second in each idle worker."""
    store, host = app.backend.store, keeper(app, 1000.0)
    for event in (lambda: store.put("T", b"x"), lambda: host.ask(tasks.FAN_OUT, "id"), host.wake):
        asleep(host)
        assert host._pause_s <= QUIET_S
        event()
        wait_until(host._woken.is_set, "the thread is woken")
        host.wait(0.0)
        assert not host._woken.is_set()

    def sleeps_until_then() -> bool:
        store.put("T", b"x", delay_level=2)  # after 5 s; a busy machine may deliver it before all sleep
        asleep(host)
        before_ms = store.maintenance.due_in_ms
        host.turn()
        return before_ms is not None and LOOK_S < host._pause_s <= before_ms / 1000

    wait_until(sleeps_until_then, "it sleeps until the message is due")


def test_a_message_that_is_not_dispatched_yet_may_be_due_soon(url):
    """Seen: the host did not know when it was due, and slept for up to 5 s."""
    with cystore.open(url.removeprefix("cystore://"), services=()) as store:
        store.put("T", b"x", delay_level=2)  # after 5 s
        assert quiet_s(store, 0.001) == 0.001
        store.dispatch()
        before_ms = store.maintenance.due_in_ms
        assert 0.001 < quiet_s(store, 0.001) <= before_ms / 1000


def test_among_greenlets_and_without_services_a_host_looks_every_second(app, monkeypatch):
    host = keeper(app, 1000.0)
    asleep(host)
    monkeypatch.setattr(greenlets, "in_use", lambda: True)
    host = keeper(app, 1000.0)
    host.turn()
    assert host._pause_s == LOOK_S
