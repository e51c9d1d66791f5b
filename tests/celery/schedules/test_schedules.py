"""Goal: schedules in the store run when they are due, once, whoever is killed, and can be changed while they run.
Method: turns of the duty on a clock that the test moves; real beats and workers that are killed."""

from __future__ import annotations

import itertools
import json
import threading
from importlib.metadata import entry_points

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.utils import uuid

from cystore import clock
from cystore.celery.base import events
from cystore.celery.beat import Scheduler
from cystore.celery.duties import duty_runs
from cystore.celery.eta import keeping
from cystore.celery.schedules import entries, runs
from cystore.celery.schedules.due_times import ScheduleError
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.support.celery import work

SOON = {"every_ms": 1000}


@pytest.fixture
def app(url):
    app = Celery("beat", broker="memory://", backend=url, set_as_current=False)
    app.conf.task_default_queue = uuid()
    yield app
    close_shared()


@pytest.fixture
def store(app):
    return app.backend.store


def turn(app) -> None:
    """Whatever is due runs."""
    while duty_runs.DELIVER_DELAYED.step(app, app.backend.store)[1]:
        pass


def due_now(app, name: str) -> None:
    """Runs a schedule as if its due time had come."""
    assert entries.run_now(app.backend.store, name)
    wait_until(lambda: turn(app) or lines(app, name), "it ran")


def lines(app, name: str) -> list[tuple[str, dict]]:
    found = app.backend.store.query(entries.RUNS, name)
    return [(one.tags, json.loads(bytes(one.body))) for one in found]


def sent(app) -> list[str]:
    """The ids of the tasks that went to the broker."""
    found = []
    with (
        app.connection_for_read() as connection,
        connection.SimpleQueue(app.conf.task_default_queue) as queue,
    ):
        while queue.qsize():
            message = queue.get()
            found.append(message.headers["id"])
            message.ack()
    return found


def test_a_schedule_is_kept_listed_changed_and_deleted(app, store):
    entries.add(store, "pulse", "shop.pulse", {"every_ms": 60_000}, args=[1], kwargs={"x": "é"})
    entries.add(store, "nightly", "shop.clean", {"crontab": "30 2 * * *", "timezone": "Europe/Berlin"})
    assert [entry.name for entry in entries.listed(store)] == ["pulse", "nightly"]
    entries.add(store, "pulse", "shop.pulse", {"every_ms": 10**12})
    assert [entry.name for entry in entries.listed(store)] == ["nightly", "pulse"]
    assert entries.pause(store, "nightly") and not entries.get(store, "nightly").enabled
    assert entries.resume(store, "nightly") and entries.get(store, "nightly").enabled
    assert entries.delete(store, "pulse") and entries.get(store, "pulse") is None
    assert not entries.delete(store, "pulse") and not entries.pause(store, "nobody")
    assert [entry.name for entry in entries.listed(store)] == ["nightly"]


def test_a_run_is_a_task_a_line_of_the_history_and_the_next_due_time(app, store):
    before = entries.add(store, "pulse", "shop.pulse", {"every_ms": 3_600_000}, options={"priority": 3})
    due_now(app, "pulse")
    ((outcome, line),) = lines(app, "pulse")
    after = entries.get(store, "pulse")
    assert outcome == runs.SENT and after.runs == 1 and after.due_ms == line["due_ms"] + 3_600_000
    assert sent(app) == [line["task_id"]] and before.runs == 0
    turn(app)
    assert len(lines(app, "pulse")) == 1 and not sent(app)


def test_a_schedule_waits_longer_than_a_message_may(url):
    """It is put again on the way, and keeps its due time."""
    app = Celery("beat", broker="memory://", backend=f"{url}?timer_max_delay_s=1", set_as_current=False)
    store = app.backend.store
    known = entries.add(store, "far", "shop.far", {"every_ms": 3_600_000})
    wait_until(lambda: turn(app) or entries.get(store, "far").serial > known.serial, "it was put again")
    again = entries.get(store, "far")
    assert (again.due_ms, again.runs) == (known.due_ms, 0) and not lines(app, "far")


def test_fields_of_a_later_version_are_left_out(app, store):
    entry = entries.add(store, "pulse", "shop.pulse", SOON)
    body = json.loads(entry.body())
    store.put(entries.TOPIC, json.dumps({**body, "later": 1, "serial": 9}).encode(), keys=("pulse",))
    assert entries.get(store, "pulse").serial == 9


def test_a_single_time_runs_once_and_is_gone(app, store):
    entries.add(store, "launch", "shop.open", {"at_ms": clock.now_ms() - 1})
    wait_until(lambda: turn(app) or lines(app, "launch"), "it ran")
    assert entries.get(store, "launch") is None and len(sent(app)) == 1


@pytest.mark.parametrize(
    ("missed", "outcomes", "count"),
    [("once", ["SENT"], 1), ("skip", ["MISSED"], 0), ("all", ["SENT"] * 5, 5)],
)
def test_missed_runs_follow_their_rule(app, store, monkeypatch, missed, outcomes, count):
    """Nobody ran the store's schedules for five hours."""
    entries.add(store, "hourly", "shop.count", {"every_ms": 3_600_000}, missed=missed)
    known = entries.get(store, "hourly")
    late = entries.replace(known, due_ms=known.due_ms - 5 * 3_600_000)
    entries.change(store, late)
    wait_until(lambda: turn(app) or len(lines(app, "hourly")) == len(outcomes), "they ran")
    assert [outcome for outcome, _ in lines(app, "hourly")] == outcomes and len(sent(app)) == count
    due_ms = entries.get(store, "hourly").due_ms
    assert due_ms > clock.now_ms() and (due_ms - late.due_ms) % 3_600_000 == 0


def test_a_kill_between_a_run_and_its_note_repeats_nothing(app, store):
    entries.add(store, "pulse", "shop.pulse", {"every_ms": 3_600_000})
    due_now(app, "pulse")
    store.groups.commit(entries.TOPIC, entries.TOPIC, 0, 0)  # as if it had not been noted
    turn(app)
    assert len(lines(app, "pulse")) == 1 and len(sent(app)) == 1


def test_the_apps_own_schedule_is_taken_over_and_others_stay(app, store):
    app.conf.beat_schedule = {
        "code": {"task": "shop.code", "schedule": 60.0},
        "gone": {"task": "x", "schedule": 5.0},
    }
    entries.add(store, "mine", "shop.mine", SOON)
    scheduler = Scheduler(app)
    assert {entry.name: entry.source for entry in entries.listed(store)} == {
        "code": "code", "gone": "code", "mine": "store",
    }  # fmt: skip
    serial = entries.get(store, "code").serial
    app.conf.beat_schedule = {"code": {"task": "shop.code", "schedule": 60.0}}
    Scheduler(app)
    assert entries.get(store, "code").serial == serial, "what did not change is left alone"
    assert entries.get(store, "gone") is None and set(scheduler.schedule) == {"code", "mine"}
    assert 0 < scheduler.tick() <= 1.0


def test_a_schedule_that_this_process_cannot_compute_is_paused(app, store):
    entries.add(store, "far", "shop.far", {"crontab": "0 0 * * *", "timezone": "UTC"})
    known = entries.get(store, "far")
    entries.change(store, entries.replace(known, when={"crontab": "0 0 * * *", "timezone": "Mars/A"}))
    entries.add(store, "good", "shop.good", {"every_ms": 3_600_000})
    due_now(app, "far")
    due_now(app, "good")
    ((outcome, line),) = lines(app, "far")
    assert outcome == runs.FAILED and "Mars/A" in line["error"]
    assert not entries.get(store, "far").enabled and lines(app, "good")[0][0] == runs.SENT


def test_a_command_makes_no_store(run, tmp_path):
    for words in (("add", "a", "b", "--every", "1m"), ("delete", "a")):
        assert "no store" in run("schedules", *words, code=2).output
    assert not (tmp_path / "store").exists()


def test_beat_finds_the_scheduler_by_its_short_name():
    (found,) = entry_points(group="celery.beat_schedulers", name="cystore")
    assert found.load() is Scheduler


def test_what_cannot_be_kept_or_called_is_named_and_stops_no_other(app, store):
    with pytest.raises(ScheduleError, match="JSON cannot hold its arguments"):
        entries.add(store, "odd", "shop.odd", SOON, args=[object()])
    with pytest.raises(ScheduleError, match="missed must be one of"):
        entries.add(store, "odd", "shop.odd", SOON, missed="never")
    with pytest.raises(ScheduleError, match="both texts"):
        entries.add(store, "", "shop.odd", SOON)
    entries.add(store, "bad", "shop.bad", {"every_ms": 3_600_000}, options={"serializer": "none such"})
    entries.add(store, "good", "shop.good", {"every_ms": 3_600_000})
    store.put(entries.TOPIC, b"no schedule")
    due_now(app, "bad")
    due_now(app, "good")
    assert lines(app, "bad")[0][0] == runs.FAILED and lines(app, "good")[0][0] == runs.SENT
    app.conf.beat_schedule = {"odd": {"task": "x", "schedule": 5, "args": (object(),)}}
    with pytest.raises(ImproperlyConfigured, match="schedule 'odd'"):
        Scheduler(app)


def test_the_command_makes_shows_and_ends_schedules(run, rows):
    run("create")
    run("schedules", "add", "pulse", "shop.pulse", "--every", "30m", "--args", "[1]", "--queue", "fast")
    run("schedules", "add", "nightly", "shop.clean", "--crontab", "30 2 * * *", "--timezone", "Europe/Berlin")
    assert {row["name"] for row in rows("schedules", "list")} == {"pulse", "nightly"}
    run("schedules", "pause", "nightly")
    assert "paused" in run("schedules", "list").stdout
    run("schedules", "resume", "nightly")
    run("schedules", "run", "pulse")
    run("schedules", "delete", "nightly")
    assert "no such schedule" in run("schedules", "delete", "nightly", code=1).stdout
    assert [row["name"] for row in rows("schedules", "list")] == ["pulse"]
    assert "has 1 fields" in run("schedules", "add", "x", "y", "--crontab", "x", code=2).output
    assert "not JSON" in run("schedules", "add", "x", "y", "--every", "1m", "--args", "[", code=2).output
    assert "has one of" in run("schedules", "add", "x", "y", code=2).output
    run("schedules", "history", "pulse", code=1)


@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_two_beats_and_a_worker_that_are_killed_lose_and_double_no_run(tmp_path, rng, kills):
    with fleet_in(tmp_path, **{keeping.SETTING: 30}) as fleet:
        store, made = fleet.backend.store, []
        for number in range(3):
            made.append(entries.add(store, f"pulse{number}", work.process_id.name, SOON, missed="all"))
        for _ in range(kills):
            # The worker runs schedules and takes no task: Redis keeps a task that a killed worker has taken.
            several = [
                fleet.start_beat("-S", "cystore.celery.beat:Scheduler"),
                fleet.start_beat("-S", "cystore.celery.beat:Scheduler"),
                fleet.start("--concurrency=1", "--queues", "empty"),
            ]
            before = sum(entry.runs for entry in entries.listed(store))
            wait_until(lambda: sum(e.runs for e in entries.listed(store)) > before + 3, "runs go on")  # noqa: B023
            threading.Event().wait(rng.random())  # the moment of the kills is the test's input
            for one in several:
                one.kill()
        fleet.start("--concurrency=2")
        for entry in made:
            assert entries.delete(store, entry.name)
        for entry in made:
            told = [json.loads(bytes(line.body)) for line in store.query(entries.RUNS, entry.name, 10_000)]
            due = [line["due_ms"] for line in told]
            assert due == sorted(set(due), reverse=True), "each due time ran once"
            assert {a - b for a, b in itertools.pairwise(due)} <= {1000}, "none is missing"
            for line in told:
                assert fleet.app.AsyncResult(line["task_id"]).get(timeout=PATIENCE_S)
                assert store.query(events.EVENTS, line["task_id"])
