"""Goal: `celery -A APP cystore report` makes the report of the app's store, and hides what the app's settings hide.
Method: celery's own program in this process on written logs; one process that cannot import PySpark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="pip install 'cystore[report]'")

from celery import Celery

from cystore.celery.base import events
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.disks.access import check_access


def test_the_report_of_the_apps_store(backend, run, rows, tmp_path):
    write(backend.store, runs(40))
    backend.store.flush()
    (found,) = rows("report")
    assert found["facts"]["runs"] == 40
    out = tmp_path / "report"
    assert "runs: 10" in run("report", "--out", str(out), "--format", "md", "--name", "app.task1").stdout
    check_access(out)
    assert "app.task1" in (out / "report.md").read_text()
    assert "| task | count |" in run("report", "--columns", "count", "--since", "1h").stdout
    assert "exists" in run("report", "--out", str(out), code=2).output
    assert "columns must name" in run("report", "--columns", "x", code=2).output


def test_hidden_values_are_hidden_in_older_records_too(backend, url, run):
    for kind in (events.STARTED, events.FAILED):
        text = "E(\"password='hunter2'\")" if kind == events.FAILED else None
        backend.store.put_many([event_message(kind, "t", "app.login", exception=text, traceback=text)])
    backend.store.flush()
    assert "hunter2" in run("report").stdout
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    app.conf.cystore_lifecycle_redact = ["password"]
    for words in (["report"], ["report", "--json"]):
        done = run(*words, app=app)
        assert "hunter2" not in done.stdout and "app.login" in done.stdout


def test_a_process_without_spark(backend, url, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'cystore[report]'")
    write(backend.store, runs(8))
    backend.store.flush()
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j')));"
        "from celery.bin.celery import main; sys.argv[0] = 'celery'; main()"
    )
    words = ["--result-backend", url, "cystore", "report", "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == 8
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
