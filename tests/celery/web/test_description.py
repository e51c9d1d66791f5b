"""Goal: the API is as its description says, and no request is an error of the server. Method: the description against
the answers of a real server; schemathesis makes requests from it, good ones and bad ones."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

import pytest

import cystore
from cystore.celery.schedules import entries
from cystore.web import openapi
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


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
@pytest.mark.may_skip("it is for the tests of the API alone")
def test_no_request_is_an_error_of_the_server(server, tmp_path):
    words = [
        "run", f"{server.url}api/openapi.json", "--checks", CHECKS, "--exclude-path", "/events",
        "--max-examples", str(EXAMPLES), "--no-color", "--url", server.url,
    ]  # fmt: skip
    done = subprocess.run(
        ends_with_us([sys.executable, "-m", "schemathesis.cli", *words]),
        cwd=tmp_path, capture_output=True, text=True, timeout=5 * TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
