"""Goal: the page's API shows every task as the log has it, page by page. Method: the real server on written logs, asked
over HTTP; logs grow, go away and come back while it runs."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime

import pytest
from celery import Celery, states

import cystore
from cystore.celery.base import events, records
from cystore.celery.base.reading import Stores
from cystore.celery.eta import waiting
from cystore.celery.lifecycle.payload import LoggedMessage
from cystore.celery.stores import close_shared
from cystore.clock import now_ms
from cystore.services.duty_table import DutyRun, Outcome
from cystore.web.answers import store_health, task_pages
from cystore.web.answers.open_stores import OpenStores
from cystore.web.answers.task_pages import Asked
from cystore.web.answers.task_rows import Texts
from tests.celery.conftest import wait_until
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.web import WebServer, asked
from tests.support.ha.ha_pair import free_port, masters, slaves
from tests.support.process import Process
from tests.support.processes.shifted import ShiftedClock

RUNS = 60
FIELDS = {
    *("id", "name", "state", "worker", "queue", "sent", "received", "started", "ended", "wait_s", "run_s"),
    *("retries", "args", "kwargs", "result", "error", "traceback", "parent_id", "root_id", "group_id"),
}
UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
LONG_ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of 60 runs, then one task in each of the states that only the log or only the results know."""
    folder = tmp_path_factory.mktemp("log")
    backend = Celery("x", backend=f"cystore://{folder}/store", set_as_current=False).backend
    write(backend.store, runs(RUNS))
    backend.store_result("t59", ValueError("stored"), states.FAILURE, traceback="Traceback of the result")
    backend.store_result("t58", {"answer": [1, "<script>"]}, states.SUCCESS)
    more = [
        event_message(events.SENT, "only-sent", "app.waits", queue="slow", eta="2999-01-01T00:00:00+00:00"),
        event_message(events.SENT, "runs", "app.runs"),
        event_message(events.STARTED, "runs", "app.runs", worker="v@h"),
        event_message(events.SENT, "again", "app.again"),
        event_message(events.STARTED, "again", "app.again", worker="v@h"),
        event_message(events.SENT, "again", "app.again", retries=1),
        event_message(
            events.RETRIED, "again", "app.again", worker="v@h", countdown=60, exception="OSError(5)"
        ),
        event_message(events.SENT, "back", "app.back"),
        event_message(events.RECEIVED, "back", "app.back", worker="v@h"),
        event_message(events.REJECTED, "back", "app.back", worker="v@h", requeue=True),
        event_message(events.SENT, "late", "app.late"),
        event_message(events.TIMED_OUT, "late", "app.late", worker="v@h", exception="TimeLimitExceeded(2)"),
        event_message(events.REVOKED, "revoked", "app.late", worker="v@h"),
        event_message(events.SENT, LONG_ID, "app.child", "root", "group", parent_id="parent", args="('x',)"),
    ]
    write(backend.store, more)
    backend.store_result("only-stored", "x", states.SUCCESS)
    backend.store_result("steps", {"done": 3}, "PROGRESS")
    yield backend.store
    close_shared()


@pytest.fixture(scope="module")
def server(log):
    with WebServer(log.path, "--rate", "100000") as server:
        yield server


def test_the_list_is_newest_first_with_every_field(server):
    page = server.json("api/tasks", limit=1000)
    assert page.keys() == {"tasks", "next"} and page["next"] is None
    found = page["tasks"]
    assert [task["id"] for task in found][:4] == ["steps", "only-stored", LONG_ID, "revoked"]
    assert [task["id"] for task in found][-3:] == ["t2", "t1", "t0"]
    assert len(found) == RUNS + 9
    for task in found:
        assert task.keys() >= FIELDS
        for field in ("sent", "received", "started", "ended"):
            assert task[field] is None or UTC_TIME.fullmatch(task[field])


def test_one_task(server):
    task = server.json("api/tasks/t59")
    assert task.keys() >= FIELDS | {"events"}
    assert (task["id"], task["name"], task["state"], task["event"]) == (
        "t59",
        "app.task3",
        "FAILURE",
        "FAILED",
    )
    assert (task["worker"], task["queue"], task["args"]) == ("w@h", "celery", "(59,)")
    assert (task["run_s"], task["retries"]) == (0.06, 0) and task["wait_s"] >= 0
    assert task["error"] == "ValueError(59)" and task["traceback"] == "Traceback of 59\n  line"
    assert task["result"]["exc_type"] == "ValueError"
    kinds = [(one["kind"], one["event"]) for one in task["events"]]
    assert kinds == [
        *(("event", one) for one in (events.SENT, events.RECEIVED, events.STARTED, events.FAILED)),
        ("result", states.FAILURE),
    ]
    assert server.json("api/tasks/t58")["result"] == {"answer": [1, "<script>"]}
    child = server.json(f"api/tasks/{LONG_ID}")
    assert (child["parent_id"], child["root_id"], child["group_id"]) == ("parent", "root", "group")


@pytest.mark.parametrize(
    ("task_id", "state", "event"),
    [
        ("t0", "SUCCESS", "SUCCEEDED"),
        ("only-sent", "PENDING", "SENT"),
        ("runs", "STARTED", "STARTED"),
        ("again", "RETRY", "SENT"),
        ("back", "PENDING", "REJECTED"),
        ("late", "FAILURE", "TIMED_OUT"),
        ("revoked", "REVOKED", "REVOKED"),
        ("only-stored", "SUCCESS", "SUCCESS"),
        ("steps", "PROGRESS", None),
    ],
)
def test_states(server, task_id, state, event):
    """A task is found by Celery's word for its state, and by the word of its event."""
    task = server.json(f"api/tasks/{task_id}")
    assert (task["state"], task["event"]) == (state, event)
    assert task_id in server.ids(state=state)
    if event:
        assert task_id in server.ids(state=event.lower())


def test_conditions(server):
    failed = [f"t{number}" for number in range(RUNS - 1, -1, -1) if number % 10 == 9]
    assert server.ids(state="FAILURE") == ["late", *failed]
    assert server.ids(state="FAILED") == failed
    assert server.ids(name="app.task3", state="FAILURE") == [one for one in failed if int(one[1:]) % 4 == 3]
    assert server.ids(name="app.task1", limit=7) == [f"t{n}" for n in range(RUNS - 1, -1, -1) if n % 4 == 1]
    assert server.ids(worker="v@h") == ["revoked", "late", "back", "again", "runs"]
    assert len(server.ids(worker="w@h", limit=13)) == RUNS
    assert server.ids(name="app.none") == server.ids(worker="none@h") == []
    assert len(server.ids(since="1h")) == RUNS + 9
    assert server.ids(until="2020-01-01T00:00:00Z") == server.ids(since="2999-01-01") == []
    assert server.ids(until="1960-01-01") == server.ids(until="0001-01-01", name="app.task0") == []
    assert len(server.ids(since="0001-01-01", until="9999-12-31")) == RUNS + 9


def test_texts(server):
    assert server.ids(text="ValueError(49)") == ["t49"]
    assert server.ids(text="Traceback of 39") == ["t39"]
    assert server.ids(text="(17,)") == ["t17"]
    assert server.ids(text=LONG_ID) == server.ids(text=LONG_ID[:9]) == [LONG_ID]
    assert server.ids(text=LONG_ID, state="FAILURE") == []
    assert server.ids(text="app.late") == ["revoked", "late"]
    assert server.ids(text="nowhere") == []


@pytest.mark.parametrize("limit", [1, 7, 69, 70])
def test_pages_have_each_task_once(server, limit):
    found = server.ids(limit=limit)
    assert len(found) == len(set(found)) == RUNS + 9
    assert found == server.ids(limit=1000)


def test_pages_stay_whole_while_the_log_grows(tmp_path):
    """Tasks of later pages get new events, and other tasks come, after each page."""
    found, after = [], None
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(30))
        for number in range(30):
            rows, after = task_pages.page_of(store, Asked(), 7, after, Texts())
            found += [row["id"] for row in rows]
            write(store, [event_message(events.STARTED, f"t{number}", "app.task0", worker="w@h")])
            write(store, runs(1, first=1000 + number))
            if after is None:
                break
        assert found == [f"t{number}" for number in range(29, -1, -1)]
        assert task_pages.page_of(store, Asked(), 1, None, Texts())[0][0]["id"] == "t1004"


def test_a_page_that_runs_out_of_time_is_continued(log):
    """Each page reads a few entries only; together they find what a page without that bound finds."""
    found, after, pages = [], None, 0
    conditions = Asked(text="ValueError(9)")
    while pages == 0 or after is not None:
        rows, after = task_pages.page_of(log, conditions, 10, after, Texts(), time_s=0, empty_s=0)
        found += [row["id"] for row in rows]
        pages += 1
    assert found == ["t9"] and pages > 1


def test_a_long_search_gets_on_page_by_page(tmp_path):
    """No page finds anything for a while: each one continues where the one before ended."""
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(1500))
        for text in ("(7,)", "nowhere"):
            found, cursors, after = [], [], None
            while not cursors or after is not None:
                rows, after = task_pages.page_of(
                    store, Asked(text=text), 10, after, Texts(), time_s=0, empty_s=0
                )
                found += [row["id"] for row in rows]
                cursors.append(after)
            assert found == (["t7"] if text == "(7,)" else [])
            assert 5 < len(cursors) == len(set(cursors)) < 200


def test_a_search_reads_no_events_that_share_a_word_with_the_text(tmp_path):
    """Newer ones may be very many."""
    with cystore.open(tmp_path / "store") as store:
        args = [f"('customer-{number % 3}',)" for number in range(300)]
        write(store, [event_message("SENT", f"t{n}", "app.task", args=one) for n, one in enumerate(args)])
        read = list(Asked(text="customer-1'").entries(store, None))
        assert {one.task_id for one in read if isinstance(one, events.Event)} == {
            f"t{n}" for n in range(1, 300, 3)
        }


@pytest.mark.parametrize("text", ["None", "True", "'", "ü", "€7", "\\n", "é-17", "line 1\nline 2", "%", "-"])
def test_texts_that_the_log_writes_in_another_way(tmp_path, text):
    """Whatever JSON, Python or a key make of a text, a search for it finds the tasks that a reader sees with it."""
    with cystore.open(tmp_path / "store") as store:
        ids = {"in the arguments": text + " 1", f"{text} as id": "1", "in the error": "1", "not at all": "1"}
        for task_id, args in ids.items():
            write(store, [event_message(events.SENT, task_id, "app.task", args=args, queue="q")])
        write(store, [event_message(events.FAILED, "in the error", "app.task", exception=f"E({text})")])
        meta = {"status": "FAILURE", "result": {"exc_type": "E", "exc_message": text}, "traceback": "t"}
        store.put(
            records.RESULTS, json.dumps(meta).encode(), keys=(records.key_of("in a result"),), tags="FAILURE",
            properties={"task": "app.task", "content_type": "application/json", "content_encoding": "utf-8"},
        )  # fmt: skip
        found = {row["id"] for row in task_pages.page_of(store, Asked(text=text), 10, None, Texts())[0]}
        assert found >= {"in the arguments", f"{text} as id", "in the error", "in a result"}
        assert "not at all" not in found


def test_several_stores_are_one_list(tmp_path):
    """A task whose SENT is in one store and whose other events are in another one is one task."""
    with cystore.open(tmp_path / "a") as a, cystore.open(tmp_path / "b") as b:
        write(a, [*runs(20), event_message(events.SENT, "both", "app.both", args="(1,)")])
        write(b, [*runs(20, first=100), event_message(events.STARTED, "both", "app.both", worker="w@h")])
        stores = OpenStores([a, b])
        for limit in (3, 1000):
            found, after = [], None
            while not found or after is not None:
                rows, after = task_pages.page_of(stores.source(), Asked(), limit, after, Texts())
                found += [row["id"] for row in rows]
            assert len(found) == len(set(found)) == 41
        assert found[0] == "both"
        both = task_pages.task_of(stores.source(), "both", Texts())
        assert (both["state"], both["args"]) == ("STARTED", "(1,)")
        assert {one["store"] for one in both["events"]} == {str(a.path), str(b.path)}
        assert len(store_health.healths(stores)) == 2


def test_a_cursor_of_other_stores_is_refused(log):
    _, after = task_pages.page_of(log, Asked(), 1, None, Texts())
    with pytest.raises(ValueError, match="cursor"):
        task_pages.page_of(Stores({"a": log, "b": log}), Asked(), 1, after, Texts())


def test_nothing_is_unpickled(tmp_path):
    message = cystore.Message(
        topic=records.RESULTS,
        body=b"\x80\x04cos\nsystem\n.",
        keys=("pickled",),
        tags=states.SUCCESS,
        properties={"content_type": "application/x-python-serialize", "content_encoding": "binary"},
    )
    with cystore.open(tmp_path / "store") as store:
        store.put_many([message])
        task = task_pages.task_of(store, "pickled", Texts())
    assert (task["state"], task["result"]) == ("SUCCESS", None)
    assert (task["result_type"], task["result_bytes"]) == (
        "application/x-python-serialize",
        len(message.body),
    )


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=1000000", "limit=-1", "limit=x", "limit=1&limit=2"),
        *("since=yesterday", "until=2026-13-01", "since=99999999999999999999", "after=x", "after=W10%3D"),
        *(
            "bogus=1",
            "state=NOTHING",
            "text=" + "x" * 1001,
            "after=" + "bnVsbA" * 3,
            "after=WzEsWzEsLTFdXQ==",
        ),
    ],
)
def test_a_bad_argument_is_named(server, query):
    answer = _asked(server, f"api/tasks?{query}")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == 400 and query.partition("=")[0] in answer.json["detail"]


def _asked(server, path):
    return asked(server.url + path)


@pytest.mark.parametrize(
    "path", ["api/tasks/none", "api/tasks/", "api/workflows/none", "api/none", "api/tasks/%00"]
)
def test_what_is_not_there(server, path):
    answer = _asked(server, path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert _asked(server, "api/tasks/" + "x" * 5000).status == 404


def test_numbers(server):
    stats = server.json("api/stats", since="1h", step="5m")
    assert stats["step_s"] == 300 and not stats["partial"] and 12 <= len(stats["buckets"]) <= 14
    total = {
        name: sum(one[name] for one in stats["buckets"])
        for name in ("sent", "succeeded", "failed", "retried")
    }
    assert total == {"sent": RUNS + 7, "succeeded": 54, "failed": 7, "retried": 1}
    names = {one["name"]: one for one in stats["names"]}
    assert names["app.task0"]["succeeded"] == 15 and names["app.task1"]["failed"] == 3
    assert names["app.task0"]["run_s"]["p50"] == pytest.approx(0.029, rel=0.02)
    assert _asked(server, "api/stats?since=7d&step=1").status == 400
    early = server.json("api/stats", since="1h", until="30m")
    assert sum(one["sent"] for one in early["buckets"]) == 0 and early["until"] < stats["until"]
    assert server.json("api/stats", since="1m", until="2m")["buckets"] == []

    causes = {(one["name"], one["cause"]): one for one in server.json("api/failures")["failures"]}
    assert causes["app.task1", "ValueError"]["count"] == 3
    assert causes["app.late", "TimeLimitExceeded"]["newest_id"] == "late"

    workers = {one["worker"]: one for one in server.json("api/workers")["workers"]}
    assert workers["w@h"]["succeeded"] == 54 and workers["w@h"]["running"] == 0
    assert [one["id"] for one in workers["v@h"]["running_now"]] == ["runs"]

    (store,) = server.json("api/stores")["stores"]
    assert (store["segments"], store["quarantine"], store["replication"]) == (1, [], None)
    assert store["status"] == "ok" and {one["topic"] for one in store["topics"]} >= {events.EVENTS}
    workflow = server.json("api/workflows/t0")
    assert [(one["depth"], one["id"]) for one in workflow["tasks"]] == [(0, "t0")]


def test_messages_of_a_topic(tmp_path):
    """Decoded; newest first, page by page; arguments that no redaction has seen are not shown."""
    with cystore.open(tmp_path / "store") as store:
        for number in range(5):
            store.put(
                "orders", b'{"number":%d}' % number, queue_id=number % 2, keys=(f"k{number}",), tags="new"
            )
        store.put("orders", "früh".encode(), properties={"color": "red"})
        store.put("orders", b"\xff\x00")
        store.put("orders", b"x" * 100_000)
        write(store, [event_message(events.SENT, "t", "app.t", message={"body": "secret"})])
        headers = {"id": "later", "task": "app.later"}
        message = LoggedMessage(headers, {}, b"secret", "application/json", "utf-8", None, "", "q")
        body = waiting.body_of(message, [])
        waiting.put(store, waiting.parse(body, now_ms() + 3_600_000, 0), body)
        with WebServer(store.path) as server:
            long, binary, text, *numbers = server.json("api/topics/orders")["messages"]
            assert (long["body"], long["body_cut"], long["size_bytes"] > 100_000) == ("x" * 1024, True, True)
            assert (binary["body"], binary["body_encoding"]) == ("/wA=", "base64")
            assert (text["body"], text["properties"]["color"]) == ("früh", "red")
            assert [one["body"] for one in numbers] == [{"number": number} for number in range(4, -1, -1)]
            assert (numbers[0]["keys"], numbers[0]["tags"], numbers[0]["queue_id"]) == (["k4"], "new", 0)
            odd = server.json("api/topics/orders", queue=1)["messages"]
            assert [one["body"]["number"] for one in odd] == [3, 1]
            found, after = [], {}
            while not found or after["after"] is not None:
                page = server.json("api/topics/orders", limit=3, store=store.path, **after)
                found += [one["physical_offset"] for one in page["messages"]]
                after = {"after": page["next"]}
            assert len(found) == 8 and found == sorted(found, reverse=True)
            for topic in ("celery_events", "SCHEDULE_TOPIC_XXXX"):
                assert "secret" not in server.get(f"api/topics/{topic}").body.decode()
            (row,) = server.json("api/eta")["tasks"]
            assert (row["id"], row["args"], row["queue"]) == ("later", None, "q")
            assert _asked(server, "api/topics/none").status == 404
            for query in ("store=/none", "queue=-1", "queue=x", "after=x", "limit=0"):
                assert _asked(server, f"api/topics/orders?{query}").status == 400, query
            for place in ("eta", "topics/orders"):
                wrong = _asked(server, f"api/{place}?after=WzEsMl0sMyw0XQ==")
                assert wrong.status == 400 and "cursor" in wrong.json["detail"]


def test_a_page_ends_within_the_asked_time(server):
    """Its cursor continues, and all pages together have each task once."""
    found, after = [], {}
    while not found or after["after"] is not None:
        page = server.json("api/tasks", text="app.task", within="1ms", **after)
        found += [one["id"] for one in page["tasks"]]
        after = {"after": page["next"]}
    assert sorted(found) == sorted(f"t{number}" for number in range(RUNS))
    assert _asked(server, "api/tasks?within=soon").status == 400


def test_workers_that_live_and_one_that_is_killed(tmp_path):
    """A worker lives while a process that wrote its events has the store open."""
    with (
        cystore.open(tmp_path / "store") as store,
        WebServer(store.path) as server,
        Process(fresh=True) as other,
    ):
        other.do(f"import cystore; store = cystore.open({str(store.path)!r})")
        for name, pid in (("here@h", os.getpid()), ("other@h", other.pid)):
            write(store, [event_message(events.STARTED, name, "app.t", worker=name, pid=pid)])

        def alive():
            return {one["worker"] for one in server.json("api/workers")["workers"] if one["alive"]}

        assert alive() == {"here@h", "other@h"}
        other.kill()
        wait_until(lambda: alive() == {"here@h"}, "the page sees that the process is gone")


@pytest.mark.parametrize("days", [-30, 40_000])
def test_a_clock_that_is_wrong(tmp_path, days):
    """The page's clock is behind that of the log, or ahead: every address answers, and each task is found."""
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(5))
    clock = ShiftedClock(tmp_path)
    clock.offset_ms = days * 86_400_000
    with WebServer(tmp_path / "store", **clock.environment({})) as server:
        assert server.ids() == server.ids(text="app.task") == [f"t{number}" for number in range(4, -1, -1)]
        for place in (
            "stats",
            "failures",
            "workers",
            "stores",
            "eta",
            "schedules",
            "tasks/t1",
            "workflows/t1",
        ):
            assert server.get(f"api/{place}").status == 200, place
        assert server.get("metrics").status == server.get("healthz").status == 200


def test_replication_is_shown(tmp_path):
    """Of a master its slaves, of a slave its master, and how far each is."""
    port = free_port()
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        write(master, runs(3))
        stores = OpenStores([master, slave])

        def shown():
            return [one["replication"] for one in store_health.healths(stores)]

        def are_level():
            of_master, of_slave = shown()
            behind = [one["behind_bytes"] for one in of_master["slaves"]]
            return of_slave["connected"] and behind == [0] and of_slave["behind_bytes"] == 0

        wait_until(are_level, "the slave has the log, and both have told so")
        of_master, of_slave = shown()
        assert (of_master["role"], of_slave["role"]) == ("master", "replica")
        assert of_slave["master"] == f"127.0.0.1:{port}" and of_master["listens"].endswith(f":{port}")


def test_damage_is_shown_with_its_copy(tmp_path):
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(20))
    (segment,) = (tmp_path / "store" / "commitlog").glob("0*")
    with open(segment, "r+b") as opened:
        opened.seek(2000)
        opened.write(b"\xff" * 300)
    (tmp_path / "store" / "checkpoint").unlink()
    (tmp_path / "store" / "abort").touch()  # so recovery walks the whole log
    with cystore.open(tmp_path / "store") as store:
        (found,) = store_health.healths(OpenStores(store))
    assert found["status"] == "damaged" and len(found["holes"]) == 1
    (copy,) = found["quarantine"]
    assert [copy["begin"], copy["end"]] == found["holes"][0]
    assert copy["state"] == "damaged" and copy["name"].startswith("commitlog-") and copy["bytes"] > 0


def test_metrics_of_several_stores(tmp_path):
    """Those of tasks too: what was there before the first scrape counts 0."""
    with cystore.open(tmp_path / "a") as a, cystore.open(tmp_path / "b") as b:
        write(a, runs(20))
        with WebServer(a.path, b.path) as server:
            text = server.get("metrics").body.decode()
            for store in (a, b):
                assert f'cystore_put_messages_total{{store="{store.path}"}} ' in text
                assert f'cystore_put_duration_seconds_count{{store="{store.path}"}} ' in text
            assert text.count("# TYPE cystore_put_messages_total ") == 1
            labels = f'store="{a.path}",name="app.task0",queue="celery"'
            assert f'cystore_tasks_total{{{labels},state="SUCCEEDED"}} 0\n' in text
            write(a, runs(1, first=100))
            text = server.get("metrics").body.decode()
            assert f'cystore_tasks_total{{{labels},state="SUCCEEDED"}} 1\n' in text
            assert f"cystore_task_run_seconds_count{{{labels}}} 1\n" in text


def test_one_store_of_two_that_is_away(tmp_path):
    for name in ("here", "gone"):
        cystore.open(tmp_path / name).close()
    with WebServer(tmp_path / "here", tmp_path / "gone") as server:
        (tmp_path / "gone").rename(tmp_path / "moved")
        wait_until(lambda: server.get("healthz").status == 503, "the server sees that the store is away")
        assert server.get("api/tasks").status == server.get("api/stats").status == 503
        assert [one["status"] for one in server.json("api/stores")["stores"]] == ["ok", "away"]
        told = server.get("metrics").body.decode()
        assert f'cystore_log_end_offset_bytes{{store="{tmp_path}/here"}}' in told
        assert f'cystore_store_away{{store="{tmp_path}/gone"}} 1' in told


def test_duties_and_holds_of_a_store(tmp_path):
    with cystore.open(tmp_path / "store") as store, WebServer(tmp_path / "store") as server:
        write(store, runs(3))
        (found,) = server.json("api/stores")["stores"]
        assert found["duties"] == found["holds"] == []
        token = store.duties.acquire("clean_expired", 600_000)
        with store.duties.step("clean_expired", token, ttl_ms=600_000):
            store.duties.ran("clean_expired", DutyRun(now_ms(), 2500, 7, Outcome.DONE))
        store.hold("archive", 0)
        (found,) = server.json("api/stores")["stores"]
        (duty,) = found["duties"]
        assert (duty["duty"], duty["outcome"], duty["runs"]) == ("clean_expired", "done", 1)
        assert duty["pid"] == os.getpid() and 0 < duty["lease_left_s"] <= 600
        assert found["holds"] == [{"name": "archive", "from": 0, "bytes": found["wrote"], "max_age_s": None}]


def test_a_store_that_goes_away_and_comes_back(tmp_path):
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(3))
    path, away = tmp_path / "store", tmp_path / "away"
    with WebServer(path) as server:
        assert server.json("healthz") == {"status": "ok"}
        path.rename(away)
        wait_until(lambda: server.get("healthz").status == 503, "the server sees that the store is away")
        answer = server.get("api/tasks")
        assert answer.status == 503 and answer.headers["content-type"] == "application/problem+json"
        assert str(path) in answer.json["detail"]
        assert server.json("api/stores")["stores"][0]["status"] == "away"
        assert "cystore_store_away" in server.get("metrics").body.decode()
        away.rename(path)
        wait_until(lambda: server.get("healthz").status == 200, "the server sees the store again")
        assert server.ids() == ["t2", "t1", "t0"]


def test_times_are_those_of_the_log(server, log):
    (newest,) = server.json("api/tasks", limit=1, name="app.task3")["tasks"]
    moment = datetime.fromisoformat(newest["ended"])
    assert moment.tzinfo == UTC and abs((datetime.now(UTC) - moment).total_seconds()) < 3600


def test_an_event_that_another_program_wrote_is_shown(tmp_path):
    """Seen: 500 for a task with a detail that JSON or UTF-8 has no form for."""
    odd = rb'{"runtime":NaN,"retries":1e999,"worker":"w\udcff","more":{"x":[Infinity]}}'
    with cystore.open(tmp_path / "store") as store:
        for kind in (events.SENT, events.STARTED, events.FAILED):
            keys = events.keys_of("odd", None, None)
            store.put(events.EVENTS, odd, keys=keys, tags=kind, properties={"task": "app.odd"})
    with WebServer(tmp_path / "store") as server:
        task = server.json("api/tasks/odd")
        assert (task["state"], task["worker"]) == ("FAILURE", "w?")
        assert task["events"][0]["more"] == {"x": [None]}
