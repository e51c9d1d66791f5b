"""Goal: with the option and a token a task is sent again, or ended, and in no other way. Method: the page of a real
fleet's app, a real worker and Redis; requests as another site's page would send them."""

from __future__ import annotations

import json
import sys

import pytest

from cystore.celery.base import events
from cystore.celery.lifecycle import payload
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
    """A worker whose app keeps messages."""
    with fleet_in(tmp_path_factory.mktemp("actions"), **{payload.SETTING: payload.MESSAGE}) as fleet:
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
        "rerun",
        "revoke",
        "cancel",
    }


def test_without_the_option_nothing_can_be_done(fleet):
    with WebServer(fleet.store_path, CYSTORE_WEB_TOKEN=TOKEN) as server:
        assert _post(server, "any", "rerun").status == 403
        assert "post" not in json.dumps(server.get("api/openapi.json", BEARER).json["paths"])
    for given in ({}, {"token": TOKEN}, {"celery": fleet.app}):
        with pytest.raises(ValueError, match="allow_actions"):
            web_app.create_app(fleet.store_path, allow_actions=True, **given)
