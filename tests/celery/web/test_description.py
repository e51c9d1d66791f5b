"""Goal: the API is as its description says, and no request is an error of the server. Method: the description against
the answers of a real server; schemathesis makes requests from it, good ones and bad ones."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys

import pytest

import cystore
from cystore.celery.eta import keeping
from cystore.celery.lifecycle import payload
from cystore.celery.schedules import entries
from cystore.web import openapi
from tests.celery.conftest import fleet_in
from tests.support.celery import work
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.web import TIMEOUT_S, WebServer
from tools.processes import ends_with_us

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "store"
    with cystore.open(path) as store:
        entries.add(store, "pulse", "app.pulse", {"every_ms": 60_000})
        write(store, [*runs(20), event_message("SENT", "ид/1 2", "имя", args="('\\ud800',)")])
    with WebServer(path, "--rate", "100000") as server:
        yield server


def test_every_address_is_described_and_there(server):
    described = server.json("api/openapi.json")
    assert described["openapi"] == "3.1.0"
    names = {"{task_id}": "t0", "{topic}": "celery_events", "{name}": "pulse"}
    for path in described["paths"]:
        if path != "/events":
            place = functools.reduce(lambda text, name: text.replace(*name), names.items(), path.lstrip("/"))
            assert server.get(place).status == 200, path
    row = server.json("api/tasks/ид/1 2")
    assert row.keys() - {"events", "actions"} == openapi.TASK_FIELDS.keys()


needs_schemathesis = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None,
    reason="schemathesis is not installed: pip install .[web-tests]",
)


def _asked(server, folder, *words, config=""):
    """Many requests, made from the description; none may be an error of the server, or differ from it."""
    (folder / "schemathesis.toml").write_text(config)
    words = [
        "run", f"{server.url}api/openapi.json", "--checks", CHECKS, "--exclude-path", "/events",
        "--max-examples", str(EXAMPLES), "--no-color", "--url", server.url, *words,
    ]  # fmt: skip
    done = subprocess.run(
        ends_with_us([sys.executable, "-m", "schemathesis.cli", *words]),
        cwd=folder, capture_output=True, text=True, timeout=5 * TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


@pytest.mark.slow
@needs_schemathesis
@pytest.mark.may_skip("it is for the tests of the API alone")
def test_no_request_is_an_error_of_the_server(server, tmp_path):
    _asked(server, tmp_path)


@pytest.mark.slow
@needs_schemathesis
@pytest.mark.may_skip("it is for the tests of the API alone")
def test_no_action_is_an_error_of_the_server(tmp_path):
    """Actions on tasks that ended, that wait for their ETA, and that there are not; on a schedule, and a topic."""
    token = "a-token-of-the-test"
    command = (sys.executable, "-m", "celery", "-A", "tests.support.celery.work", "cystore", "web")
    with fleet_in(tmp_path, **{payload.SETTING: payload.MESSAGE, keeping.SETTING: 30}) as fleet:
        store = fleet.backend.store
        entries.add(store, "pulse", work.add.name, {"every_ms": 3_600_000}, args=[40, 2])
        store.put("orders", b"1")
        write(store, runs(3))
        waits = [fleet.task(work.add).apply_async((1, 1), countdown=3600).id for _ in range(5)]
        ids = [*waits, fleet.task(work.add).delay(1, 1).id, "t0", "t1"]
        known = {"path.task_id": ids, "path.name": ["pulse"], "path.topic": ["orders", "celery_events"]}
        config = "".join(
            f"[dictionaries.words{number}]\nvalues = {json.dumps(values)}\n"
            for number, values in enumerate(known.values())
        )
        config += "[parameters]\n" + "".join(
            f'"{name}" = {{ dictionary = "words{number}", probability = 0.8 }}\n'
            for number, name in enumerate(known)
        )
        options = ("--allow-actions", "--token", token, "--rate", "100000")
        with WebServer(*options, command=command, **fleet.environment) as server:
            _asked(server, tmp_path, "-H", f"Authorization: Bearer {token}", config=config)
            assert server.get("healthz").status == 200
            seen = {
                row["state"]
                for row in server.get("api/tasks", {"Authorization": f"Bearer {token}"}).json["tasks"]
            }
            assert "REVOKED" in seen  # some actions were done
