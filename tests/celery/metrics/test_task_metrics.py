"""Goal: each number about tasks is that of the log, in bounded memory, and the log is read once. Method: logs as the
handlers write them, of every order that events can have; a server on stores that go away, grow and are replaced."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest
from celery import Celery

import cystore
from cystore._native.record.message import Message
from cystore.celery.base import events
from cystore.celery.eta import waiting
from cystore.celery.lifecycle.payload import LoggedMessage
from cystore.celery.metrics import log_follower, task_counts
from cystore.celery.metrics.log_follower import LogFollower
from cystore.clock import now_ms
from cystore.metrics.exporter import Exporter
from cystore.metrics.open_stores import OpenStores
from cystore.store import MessageStore
from tests.celery.conftest import wait_until
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.scrapes import MetricsServer, Scrape
from tests.support.celery.web import TIMEOUT_S, asked
from tests.support.clock import turn
from tools.processes import ends_with_us

PROCESS_GONE = 4_000_000  # more than a process id may be


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "store") as store:
        yield store


def follower(**settings: object) -> LogFollower:
    """One that counts the whole log."""
    return LogFollower(from_oldest=True, look_s=float("inf"), **settings)


def told(store, *messages, **settings) -> Scrape:
    write(store, list(messages))
    return Scrape.of(follower(**settings).look(store))


def event(kind, task_id, name="app.a", **details) -> Message:
    return event_message(kind, task_id, name, **details)


def test_a_log_is_counted(store):
    found = told(store, *runs(40))
    task3 = {"name": "app.task3", "queue": "celery"}
    assert found.sum("cystore_tasks_total", state="SENT") == 40
    assert found.sum("cystore_tasks_total", state="SUCCEEDED") == 36
    assert found.sum("cystore_tasks_total", state="FAILED", **task3) == 2
    assert found.sum("cystore_task_run_seconds_count", **task3) == 10
    assert found.sum("cystore_task_run_seconds_sum") == pytest.approx(sum(range(1, 41)) / 1000)
    assert found.sum("cystore_task_run_seconds_bucket", le="0.01") == 10
    assert found.sum("cystore_task_wait_seconds_count") == 40
    assert found.sum("cystore_tasks_in_flight") == found.sum("cystore_tasks_waiting") == 0


def test_a_store_without_tasks_has_no_such_metrics(store):
    store.put("orders", b"1")
    assert follower().look(store) == []


@pytest.mark.parametrize(
    ("given", "in_flight", "waiting", "waits"),
    [
        ([events.SENT], 0, 1, 0),
        ([events.RECEIVED], 0, 1, 0),
        ([events.SENT, events.RECEIVED, events.STARTED], 1, 0, 1),
        ([events.STARTED, events.SENT], 1, 0, 1),  # told late
        ([events.STARTED, events.SUCCEEDED, events.SENT], 0, 0, 1),
        ([events.SENT, events.STARTED, events.INTERNAL_ERROR], 1, 0, 1),
        ([events.SENT, events.STARTED, events.REDELIVERED], 0, 1, 1),
        ([events.SENT, events.STARTED, events.REDELIVERED, events.STARTED, events.SUCCEEDED], 0, 0, 1),
        ([events.SENT, events.REVOKED], 0, 0, 0),
        ([events.SENT, events.UNKNOWN], 0, 0, 0),
        ([events.SUCCEEDED], 0, 0, 0),
        ([events.SENT, events.SUCCEEDED, events.SENT], 0, 1, 0),  # sent again under its id
        ([events.SENT, "NEW_KIND"], 0, 1, 0),
    ],
)
def test_orders_of_events(store, given, in_flight, waiting, waits):
    found = told(store, *(event(kind, "t") for kind in given))
    assert found.sum("cystore_tasks_in_flight") == in_flight
    assert found.sum("cystore_tasks_waiting") == waiting
    assert found.sum("cystore_task_wait_seconds_count") == waits
    assert found.sum("cystore_tasks_total") == len(given)


def test_a_retry_waits_again(store):
    """A retry sends its message before it ends its run."""
    retry = [
        event(events.SENT, "t", queue="q"),
        event(events.STARTED, "t"),
        event(events.SENT, "t", queue="q", retries=1, eta="2999-01-01T00:00:00+00:00"),
    ]
    assert told(store, *retry).sum("cystore_tasks_in_flight", queue="q") == 1
    found = told(store, event(events.RETRIED, "t", countdown=60))
    assert found.sum("cystore_tasks_in_flight") == 0
    assert found.sum("cystore_tasks_waiting") == 0  # it is not due
    assert found.sum("cystore_task_retries_total", queue="q") == 1
    found = told(store, event(events.STARTED, "t", retries=1), event(events.SUCCEEDED, "t", retries=1))
    assert found.sum("cystore_task_wait_seconds_count", queue="q") == 2
    assert found.sum("cystore_task_wait_seconds_sum") < 60  # it began before it was due


def test_tasks_that_wait_for_their_eta(url):
    """Also those whose events are older than a new reader looks back: the store itself knows them."""
    app = Celery("eta", broker="memory://", backend=url, set_as_current=False)
    store, due_ms = app.backend.store, now_ms() + 3_600_000
    for name in ("fired", "cancelled", "waits"):
        headers = {"id": name, "task": "app.later"}
        message = LoggedMessage(headers, {}, b"[]", "application/json", "utf-8", None, "", "slow")
        body = waiting.body_of(message, [])
        waiting.put(store, waiting.parse(body, due_ms, 0), body)
    reader = LogFollower()

    def found() -> float:
        return Scrape.of(reader.look(store)).sum("cystore_tasks_eta_waiting", name="app.later", queue="slow")

    write(store, [event(events.SENT, "other")])
    assert found() == 3
    write(store, [event(events.FIRED, "fired", "app.later", queue="slow")])
    assert found() == 2  # before its ETA
    write(store, [event(events.CANCELLED, "cancelled", "app.later", queue="slow")])
    write(
        store, [event(events.SCHEDULED, "more", "app.later", queue="slow", eta="2999-01-01T00:00:00+00:00")]
    )
    assert found() == 2
    assert waiting.fire(app, store, "waits")
    assert found() == 1  # it is due, and waits for a worker that sends it
    assert Scrape.of(LogFollower().look(store)).sum("cystore_tasks_waiting", name="app.later") == 2


def test_tries_that_overtake_each_other(store):
    """Seen in a fleet: the next try began, or ended, before the process of the one before wrote its events."""
    first = [event(events.SENT, "t"), event(events.STARTED, "t")]
    found = told(
        store, *first, event(events.SENT, "t", retries=1), event(events.STARTED, "t", retries=1),
        event(events.RETRIED, "t"),
    )  # fmt: skip
    assert found.sum("cystore_tasks_in_flight") == 1
    ended = [event(events.SUCCEEDED, "t", retries=2), event(events.RETRIED, "t", retries=1)]
    found = told(store, event(events.STARTED, "t", retries=2), *ended, event(events.SENT, "t", retries=2))
    assert found.sum("cystore_tasks_in_flight") == found.sum("cystore_tasks_waiting") == 0
    assert found.sum("cystore_task_wait_seconds_count") == 3
    assert found.sum("cystore_task_retries_total") == 2


def test_a_message_that_went_back_is_no_failure(store):
    found = told(
        store,
        event(events.SENT, "t"), event(events.STARTED, "t"), event(events.CHILD_LOST, "t", requeue=True),
        event(events.SENT, "u"), event(events.RECEIVED, "u"), event(events.REJECTED, "u", requeue=True),
        event(events.SENT, "v"), event(events.STARTED, "v"), event(events.CHILD_LOST, "v"),
    )  # fmt: skip
    assert found.sum("cystore_tasks_total", state=task_counts.REQUEUED) == 2
    assert found.sum("cystore_tasks_total", state="CHILD_LOST") == 1
    assert found.sum("cystore_tasks_waiting") == 2


def test_a_result_of_another_home_is_not_awaited_here(store):
    found = told(store, event(events.SENT, "t", home="another"), event(events.SENT, "u"))
    assert found.sum("cystore_tasks_total", state="SENT") == 2
    assert found.sum("cystore_tasks_waiting") == 1


def test_events_that_could_not_be_recorded_are_counted(store):
    found = told(store, event(events.SENT, "t", lost=3), event(events.SENT, "u", lost="x"))
    assert found.sum("cystore_task_events_lost_total") == 3


def test_unfinished_tasks_grow_old(store, monkeypatch):
    write(store, [event(events.SENT, "sent"), event(events.STARTED, "runs")])
    write(store, [event(events.SENT, "late", eta="2999-01-01T00:00:00+00:00")])
    reader = follower(unfinished_s=600)
    assert Scrape.of(reader.look(store)).sum("cystore_tasks_unfinished") == 0
    turn(monkeypatch, 601_000)
    found = Scrape.of(reader.look(store))
    assert found.sum("cystore_tasks_unfinished") == 2
    assert found.sum("cystore_tasks_waiting_oldest_seconds") == pytest.approx(601, abs=60)
    assert found.sum("cystore_tasks_unfinished_after_seconds") == 600
    write(store, [event(events.STARTED, "sent"), event(events.SUCCEEDED, "sent")])
    assert Scrape.of(reader.look(store)).sum("cystore_tasks_unfinished") == 1


def test_a_sent_long_after_the_end_is_another_run(store, monkeypatch):
    write(store, [event(events.STARTED, "t"), event(events.SUCCEEDED, "t")])
    monkeypatch.setattr(task_counts, "LATE_SENT_MS", -1)
    assert told(store, event(events.SENT, "t")).sum("cystore_tasks_waiting") == 1


def test_a_task_whose_process_is_gone_is_lost(store):
    """The process of another worker, this one, shows that processes can be seen here."""
    found = told(
        store,
        event(events.STARTED, "lost", worker="gone@h", pid=PROCESS_GONE),
        event(events.STARTED, "runs", worker="here@h", pid=os.getpid()),
    )
    assert found.sum("cystore_tasks_in_flight") == 2 and found.sum("cystore_tasks_lost") == 1
    assert found.values("cystore_worker_alive", "worker")["here@h"] == 1


def test_workers_fall_silent(store, monkeypatch):
    """Where their processes cannot be seen, their events count."""
    write(store, [event(events.RECEIVED, "t", worker="w@h")])
    reader = follower()
    found = Scrape.of(reader.look(store))
    assert (
        found.values("cystore_worker_alive", "worker") == {"w@h": 1}
        and found.sum("cystore_workers_alive") == 1
    )
    last_s = found.values("cystore_worker_last_event_timestamp_seconds", "worker")["w@h"]
    assert last_s == pytest.approx(now_ms() / 1000, abs=600)
    turn(monkeypatch, 600_000)
    found = Scrape.of(reader.look(store))
    assert (
        found.values("cystore_worker_alive", "worker") == {"w@h": 0}
        and found.sum("cystore_workers_alive") == 0
    )
    turn(monkeypatch, 25 * 3_600_000)
    assert Scrape.of(reader.look(store)).values("cystore_worker_alive", "worker") == {}


# ------------------------------------------------------------------------------------------------ bounds


def test_names_are_bounded(store):
    """Two names with their queues, the others of these names, and the rest."""
    made = [event(events.SENT, f"t{n}", f"app.n{n}", queue="q") for n in range(50)]
    made += [event(events.SENT, f"u{n}", "app.n0", queue=f"q{n}") for n in range(50)]
    found = told(store, *made, names_most=2)
    assert found.sum("cystore_tasks_total", name="app.n0", queue="q") == 1
    assert found.sum("cystore_tasks_total", name="app.n0", queue="other") == 50
    assert found.sum("cystore_tasks_total", name="other", queue="other") == 48
    assert found.sum("cystore_tasks_total") == 100
    workers = [event(events.RECEIVED, f"t{n}", worker=f"w{n}") for n in range(9)]
    found = told(store, *workers, names_most=2)
    assert len(found.values("cystore_worker_alive", "worker")) == 2  # the total has all of them
    assert found.sum("cystore_workers_alive") == 9


def test_a_million_names_cost_no_memory():
    places = log_follower.TaskCounts(200).places
    for number in range(1_000_000):
        places.of(f"app.task{number}", f"q{number % 7}").events["SENT"] += 1
    assert len(list(places)) == 201
    assert sum(place.events["SENT"] for place in places) == 1_000_000


def test_open_tasks_are_bounded(store, monkeypatch):
    monkeypatch.setattr(task_counts, "OPEN_MOST", 10)
    monkeypatch.setattr(task_counts, "ENDED_MOST", 3)
    write(store, runs(20))
    reader = follower()
    reader.look(store)
    write(store, [event(events.SENT, f"open{number}") for number in range(25)])
    found = Scrape.of(reader.look(store))
    assert found.sum("cystore_tasks_waiting") == len(reader.counts._open) == 10
    assert found.sum("cystore_tasks_left_out_total") == 15
    assert len(reader.counts._ended) == 3
    write(store, [event(events.SUCCEEDED, "open0"), event(events.SUCCEEDED, "open24")])
    found = Scrape.of(reader.look(store))
    assert (
        found.sum("cystore_tasks_waiting") == 9 and found.sum("cystore_tasks_total", state="SUCCEEDED") == 20
    )


@pytest.mark.parametrize(
    "name",
    ['a"b', "a\\b", "a\nb", "a\tb", "{}", "ä€😀", "a\0b", "x" * 5000, "", "le", "+Inf", "a\r\nb", "\u2028"],
)
def test_odd_names(store, name):
    """Each is one label that Prometheus's parser reads."""
    found = told(store, event_message(events.SENT, "t", "app", queue=name, worker=name or None))
    shown = name.replace("\0", "\ufffd")[:256]
    assert found.sum("cystore_tasks_total", queue=shown, state="SENT") == 1
    text = "\ud800" + name  # JSON can hold it, UTF-8 cannot
    found = told(store, event_message(events.RECEIVED, "u", "app", worker=text))
    assert found.sum("cystore_tasks_total", state="RECEIVED") == 1
    found.text.encode()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"[" * 100_000, b'{"retries": 1e400, "pid": "x", "queue": 7}']
)
def test_broken_bodies(store, body):
    message = Message(
        topic=events.EVENTS,
        body=body,
        queue_id=1,
        keys=("t",),
        tags=events.STARTED,
        properties={"task": "app"},
    )
    assert told(store, message).sum("cystore_tasks_total", state="STARTED", name="app") == 1


# ------------------------------------------------------------------------------------------------ reading


def test_the_log_is_read_once(store, monkeypatch):
    """A look reads from where the last one ended."""
    write(store, runs(30))
    begins: list[int] = []
    real = MessageStore.scan

    def noted(self, begin=None, end=None, **more):
        begins.append(begin)
        return real(self, begin, end, **more)

    monkeypatch.setattr(MessageStore, "scan", noted)
    reader = follower()
    first = Scrape.of(reader.look(store))
    end = store.wrote_position
    assert Scrape.of(reader.look(store)).text == first.text
    write(store, runs(5, first=100))
    assert Scrape.of(reader.look(store)).sum("cystore_tasks_total", state="SENT") == 35
    assert begins == [store.stats()["min_physical_offset"], end, end]


def test_a_look_ends_in_time_and_the_next_one_continues(store):
    """Until it has read the whole log it tells no gauges of open tasks, which would be wrong."""
    write(store, [*runs(200), event(events.SENT, "open")])
    reader, looks = LogFollower(from_oldest=True, look_s=0), 0
    found = Scrape.of(reader.look(store))
    assert found.sum("cystore_task_log_behind_bytes") > 0
    assert "cystore_tasks_waiting" not in found.names() and "cystore_workers_alive" not in found.names()
    while found.sum("cystore_task_log_behind_bytes"):
        looks += 1
        found = Scrape.of(reader.look(store))
    assert looks > 1
    assert found.sum("cystore_tasks_total", state="SENT") == 201 and found.sum("cystore_tasks_waiting") == 1


def test_counters_begin_with_the_reader(store):
    """It knows what was open before, and shows each name with 0, so that the first increase is seen."""
    write(store, [*runs(20), event(events.STARTED, "open", "app.open", queue="q", worker="w@h")])
    reader = LogFollower()
    found = Scrape.of(reader.look(store))
    assert found.sum("cystore_tasks_total") == found.sum("cystore_task_run_seconds_count") == 0
    assert {"app.task0", "app.open"} <= {one.labels["name"] for one in found.samples if "name" in one.labels}
    assert found.sum("cystore_tasks_in_flight", name="app.open", queue="q") == 1
    write(store, [event(events.SUCCEEDED, "open", "app.open", runtime=2.0)])
    found = Scrape.of(reader.look(store))
    assert (
        found.sum("cystore_tasks_total")
        == found.sum("cystore_tasks_total", state="SUCCEEDED", queue="q")
        == 1
    )
    assert found.sum("cystore_tasks_in_flight") == 0


def test_a_look_back_is_bounded(store, monkeypatch):
    write(store, [event(events.SENT, "old")])
    assert Scrape.of(LogFollower().look(store)).sum("cystore_tasks_waiting") == 1
    turn(monkeypatch, 25 * 3_600_000)
    assert Scrape.of(LogFollower().look(store)).sum("cystore_tasks_waiting") == 0


def test_another_store_at_the_path_is_followed(tmp_path):
    """Counters go on; open tasks are those of the log that is there."""
    path = tmp_path / "store"
    with cystore.open(path) as first:
        write(first, [*runs(3), event(events.SENT, "open")])
    stores = OpenStores(path, cystore.StoreConfig(read_only=True, services=()))
    exporter = Exporter(stores, follower)
    before = Scrape.of(exporter.found())
    assert before.sum("cystore_tasks_total", state="SENT") == 4 and before.sum("cystore_tasks_waiting") == 1
    path.rename(tmp_path / "moved")
    wait_until(
        lambda: Scrape.of(exporter.found()).sum("cystore_store_away", store=str(path)) == 1,
        "the store is away",
    )
    with cystore.open(path) as second:
        write(second, runs(2))
        wait_until(
            lambda: Scrape.of(exporter.found()).sum("cystore_store_away") == 0, "a store is there again"
        )
        wait_until(
            lambda: Scrape.of(exporter.found()).sum("cystore_tasks_total", state="SENT") == 6,
            "it is followed",
        )
        assert Scrape.of(exporter.found()).sum("cystore_tasks_waiting") == 0
    stores.close()


def test_damage_stops_no_scrape(tmp_path):
    path = tmp_path / "store"
    with cystore.open(path) as store:
        write(store, runs(2))
        place = store.wrote_position
        write(store, runs(50, first=10))
    with open(path / "commitlog" / f"{0:020}", "r+b") as log:
        log.seek(place + 60)
        log.write(b"\xff" * 8)
    with cystore.open(path, read_only=True) as store:
        found = Scrape.of(follower().look(store))
        names = found.names()
    assert {"cystore_task_log_damaged", "cystore_tasks_total"} <= names
    assert found.sum("cystore_tasks_total", state="SENT") >= 2


# ------------------------------------------------------------------------------------------------ the server


def refused(*words):
    command = [sys.executable, "-m", "cystore", "metrics", *map(str, words)]
    done = subprocess.run(
        ends_with_us(command), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == ""
    return done


def test_the_server(tmp_path):
    with cystore.open(tmp_path / "a") as a, cystore.open(tmp_path / "b") as b:
        write(a, runs(8))
        with MetricsServer(tmp_path / "a", tmp_path / "b", "--max-names", "2", "--from-oldest") as server:
            found = server.scrape()
            assert found.sum("cystore_tasks_total", state="SENT", store=str(a.path)) == 8
            assert found.sum("cystore_tasks_total", name="other") == 16
            assert found.sum("cystore_put_messages_total", store=str(b.path)) == 0
            write(b, runs(3))
            found = server.scrape()
            assert found.sum("cystore_tasks_total", state="SENT", store=str(b.path)) == 3
            assert found.text.count("# TYPE cystore_tasks_total ") == 1

            other = server.url.removesuffix("metrics")
            assert asked(other).status == 404 and asked(server.url, method="POST").status == 405
            address = server.url.removeprefix("http://").removesuffix("/metrics")
            line = refused(tmp_path / "a", "--listen", address).stderr
            assert "Address already in use" in line and line.endswith("give --listen another HOST:PORT\n")

            host, _, port = address.rpartition(":")
            hanging = [socket.create_connection((host, int(port))) for _ in range(100)]
            for client in hanging[:50]:
                client.sendall(b"GET /metrics HTTP/1.1\r\nslow: ")
            assert server.scrape().sum("cystore_store_away") == 0
            for client in hanging:
                client.close()
            with socket.create_connection((host, int(port))) as client:
                client.sendall(b"\x00\xff\r\n\r\n")
                assert b" 400 " in client.makefile("rb").readline()

            shutil.move(tmp_path / "b", tmp_path / "c")
            wait_until(lambda: server.scrape().sum("cystore_store_away") == 1, "one store is away")
            assert server.scrape().sum("cystore_tasks_total", state="SENT", store=str(a.path)) == 8


def test_what_cannot_be_listened_to(tmp_path):
    cystore.open(tmp_path / "a").close()
    assert "no store" in refused(tmp_path / "none", "--listen", "0").stderr.lower()
    for address in ("nowhere", "127.0.0.1:x", "127.0.0.1:70000", ":"):
        assert "is not HOST:PORT" in refused(tmp_path / "a", "--listen", address).stderr
    assert "cannot listen on" in refused(tmp_path / "a", "--listen", "no.such.host.invalid:0").stderr
    assert "exclude each other" in refused(tmp_path / "a", "--listen", "0", "--json").stderr
    assert (
        "is not a length of time" in refused(tmp_path / "a", "--tasks", "--unfinished-after", "soon").stderr
    )
