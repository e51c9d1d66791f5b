"""Goal: with the option and a token tasks, schedules and topics are acted on, and in no other way. Method: the page of
a real fleet's app, a real worker and Redis; requests as another site's page would send them."""

from __future__ import annotations

import json
import sys
from urllib.parse import quote

import pytest

from cystore.celery.base import events
from cystore.celery.eta import keeping
from cystore.celery.lifecycle import payload
from cystore.celery.schedules import entries
from cystore.web import app as web_app
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.support.celery import lifecycle_tasks, work
from tests.support.celery.web import WebServer, asked

TOKEN = "a-token-of-the-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
COOKIE = {"Cookie": f"cystore_token={TOKEN}"}
COMMAND = (sys.executable, "-m", "celery", "-A", "tests.support.celery.work", "cystore", "web")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A worker whose app keeps messages, and keeps ETAs in the store."""
    settings = {payload.SETTING: payload.MESSAGE, keeping.SETTING: 30}
    with fleet_in(tmp_path_factory.mktemp("actions"), **settings) as fleet:
        assert fleet.backend.store
        fleet.start("--concurrency=2", "--include", lifecycle_tasks.__name__)
        yield fleet


@pytest.fixture(scope="module")
def server(fleet):
    with WebServer("--allow-actions", "--token", TOKEN, command=COMMAND, **fleet.environment) as server:
        yield server


def _post(server, task_id, action, headers=BEARER):
    return asked(f"{server.url}api/tasks/{task_id}/{action}", headers, "POST")


def _task(server, task_id):
    answer = server.get(f"api/tasks/{task_id}", BEARER)
    return answer.json if answer.status == 200 else {"state": None}


def test_a_task_is_sent_again(fleet, server):
    first = fleet.task(work.add).delay(40, 2)
    assert first.get(timeout=PATIENCE_S) == 42
    wait_until(lambda: _task(server, first.id)["state"] == "SUCCESS", "its end is in the log")
    assert _task(server, first.id)["actions"] == ["rerun"]
    answer = _post(server, first.id, "rerun", {**COOKIE, "X-Cystore-Action": "rerun"})
    assert answer.status == 200 and answer.json["action"] == "rerun"
    again = answer.json["new_id"]
    assert again != first.id and fleet.app.AsyncResult(again).get(timeout=PATIENCE_S) == 42
    assert _task(server, again)["rerun_of"] == first.id
    assert _post(server, first.id, "cancel").status == 409


def test_a_running_task_is_ended(fleet, server, tmp_path):
    running = fleet.task(lifecycle_tasks.blocks).delay(str(tmp_path / "begun"))
    wait_until(lambda: _task(server, running.id)["state"] == "STARTED", "it runs")
    assert _task(server, running.id)["actions"] == ["rerun", "revoke", "cancel"]
    assert _post(server, running.id, "cancel").status == 200
    wait_until(lambda: _task(server, running.id)["event"] == events.REVOKED, "it was ended")


def _waiting(server, **query):
    return server.get("api/eta", BEARER, **query).json


def test_a_task_that_waits_for_its_eta_is_fired_or_withdrawn(fleet, server):
    sent = [fleet.task(work.add).apply_async((number, 1), countdown=3600 + number) for number in range(3)]
    listed = _waiting(server)
    assert [row["id"] for row in listed["tasks"]] == [one.id for one in sent] and listed["next"] is None
    assert (listed["tasks"][0]["name"], listed["tasks"][0]["queue"]) == (work.add.name, work.QUEUE)
    assert listed["tasks"][1]["args"] == "(1, 1)" and listed["actions"] == ["fire", "cancel"]
    first = _waiting(server, limit=1)
    assert [row["id"] for row in _waiting(server, limit=5, after=first["next"])["tasks"]] == [
        one.id for one in sent[1:]
    ]
    assert _waiting(server, name="other")["tasks"] == []
    assert _task(server, sent[0].id)["actions"] == ["rerun", "revoke", "cancel", "fire"]
    assert _post(server, sent[0].id, "fire").status == 200
    assert sent[0].get(timeout=PATIENCE_S) == 1
    assert _post(server, sent[1].id, "cancel").json["notes"]
    assert fleet.app.AsyncResult(sent[1].id).state == "REVOKED"
    assert _post(server, sent[1].id, "cancel").status == _post(server, sent[0].id, "fire").status == 409
    assert [row["id"] for row in _waiting(server)["tasks"]] == [sent[2].id]
    assert _post(server, sent[2].id, "revoke").status == 200 and not _waiting(server)["tasks"]


def test_a_schedule_runs_now_stops_and_ends(fleet, server):
    store = fleet.backend.store
    entries.add(store, "pulse/ 1", work.add.name, {"every_ms": 3_600_000}, args=[40, 2])
    entries.add(store, "later", work.add.name, {"every_ms": 7_200_000}, args=[40, 2])

    def act(action, name="pulse/ 1", headers=BEARER):
        return asked(f"{server.url}api/schedules/{quote(name)}/{action}", headers, "POST").status

    def shown():
        return server.get("api/schedules/pulse/ 1", BEARER).json

    listed = server.get("api/schedules", BEARER).json
    assert [row["name"] for row in listed["schedules"]] == ["pulse/ 1", "later"]
    assert listed["schedules"][0]["args"] == [40, 2] and shown()["schedule"] == "every 1:00:00"
    assert act("run") == 200
    wait_until(lambda: [run["outcome"] for run in shown()["history"]] == ["SUCCEEDED"], "its task ran")
    assert act("pause") == 200 and shown()["enabled"] is False
    assert act("resume") == 200 and shown()["enabled"] is True
    assert act("delete") == 200 and shown()["history"] and "task" not in shown()
    assert act("run") == act("run", "none") == act("explode") == 404 and act("run", headers=COOKIE) == 403
    assert server.get("api/schedules/none", BEARER).status == 404
    assert act("delete", "later") == 200 and not server.get("api/schedules", BEARER).json["schedules"]


def test_topics_are_purged_and_expired_segments_removed(fleet, server):
    store = fleet.backend.store
    store.put("orders", b"1")
    store.put("orders", b"2", queue_id=1)

    def act(place, headers=BEARER):
        return asked(f"{server.url}api/{place}", headers, "POST")

    assert act("topics/orders/purge", COOKIE).status == 403
    assert act("topics/orders/purge").json["messages"] == 2 and "orders" not in store.topics()
    for topic in ("celery_results", "SCHEDULE_TOPIC_XXXX", "none"):
        assert act(f"topics/{topic}/purge").status == 409
    assert act("stores/clean").json == {"action": "clean", "segments": 0}
    assert server.get("api/stores", BEARER).json["actions"] == ["clean", "purge"]


def test_what_is_refused(fleet, server):
    done = fleet.task(work.add).delay(1, 1)
    assert done.get(timeout=PATIENCE_S) == 2
    wait_until(lambda: _task(server, done.id)["state"] == "SUCCESS", "its end is in the log")
    before = len(_task(server, done.id)["events"])
    assert _post(server, done.id, "rerun", {}).status == 401
    assert _post(server, done.id, "rerun", COOKIE).status == 403  # a form of another site can send no more
    assert _post(server, "unknown", "rerun").status == 404
    assert _post(server, done.id, "explode").status == 404
    assert asked(f"{server.url}api/tasks/{done.id}/rerun", BEARER).status == 404  # a GET does nothing
    assert len(_task(server, done.id)["events"]) == before
    described = server.get("api/openapi.json", BEARER).json["paths"]
    assert {path.rpartition("/")[2] for path in described if "post" in described[path]} == {
        *("rerun", "revoke", "cancel", "fire", "run", "pause", "resume", "delete", "purge", "clean"),
    }


def test_without_the_option_nothing_can_be_done(fleet):
    with WebServer(fleet.store_path, CYSTORE_WEB_TOKEN=TOKEN) as server:
        assert _post(server, "any", "rerun").status == 403
        assert "post" not in json.dumps(server.get("api/openapi.json", BEARER).json["paths"])
    for given in ({}, {"token": TOKEN}, {"celery": fleet.app}):
        with pytest.raises(ValueError, match="allow_actions"):
            web_app.create_app(fleet.store_path, allow_actions=True, **given)
