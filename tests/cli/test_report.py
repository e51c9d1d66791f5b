"""Goal: `cystore report` makes the report of stores without Spark: the page, JSON and Markdown, of the time, tasks and
columns that are asked for, for its owner alone. Method: the command on written logs, in processes that cannot import
PySpark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="pip install 'cystore[report]'")
pytest.importorskip("celery", reason="the logs are written with the plugin's layout")

import pyarrow.parquet as pq

import cystore
from cystore.celery.base import events
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.cli.stores import damage
from tests.support.disks.access import check_access

WITHOUT_SPARK = (
    "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j')));"
    "from cystore.cli import main; sys.exit(main(sys.argv[1:]))"
)
TABLES = {"hourly", "names", "workers", "tracebacks", "workflows"}


def report(*words, code=0):
    """The command's output; importing PySpark fails in its process."""
    command = [sys.executable, "-c", WITHOUT_SPARK, "report", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback (most" not in done.stderr
    return done.stderr if code else done.stdout


def as_json(*words):
    return json.loads(report(*words, "--format", "json"))


@pytest.fixture
def log(store_path):
    """40 runs of 4 tasks, 4 of them failures, and one task that waits."""
    with cystore.open(store_path) as store:
        write(store, runs(40))
        store.put_many([event_message(events.SENT, "waits", "app.mail")])
        store.put_many([event_message(events.SKIPPED, "skipped", "app.mail", cause="t9")])
    return store_path


def test_a_folder_with_the_page_and_the_tables(log, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'cystore[report]'")
    out = tmp_path / "reports" / "day"
    out.parent.mkdir(mode=0o755)
    found = json.loads(report(log, "--out", out, "--json"))
    assert found == {"tasks": 4, "runs": 40, "failed": 4, "retries": 0, "out": str(out)}
    assert {path.name for path in out.iterdir()} == {*TABLES, "report.html", ".cystore-report"}
    check_access(out)
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 2 and "ValueError(39)" in page and "Unfinished tasks: 1<" in page
    assert pq.read_table(out / "names")["count"].to_pylist() == [10] * 4
    assert "exists" in report(log, "--out", out, code=2)
    assert "runs: 40" in report(log, "--out", out, "--overwrite")
    (tmp_path / "other").mkdir()
    assert "is not a report" in report(log, "--out", tmp_path / "other", "--overwrite", code=2)
    assert "not contain each other" in report(log, "--out", log / "report", code=2)


def test_json_and_markdown(log, tmp_path):
    found = as_json(log)
    assert found["facts"] == {"tasks": 4, "runs": 40, "failed": 4, "retries": 0, "unfinished": 1}
    assert set(found["tables"]) == {*TABLES, "unfinished"}
    failure = found["tables"]["tracebacks"][0]
    assert failure["exception"].startswith("ValueError(") and failure["last"].endswith("Z")
    assert [row["task_id"] for row in found["tables"]["unfinished"]] == ["waits"]
    assert json.loads(report(log, "--json"))["tables"] == found["tables"]
    text = report(log)
    assert "| app.task1 | 10 | 2 | 20.00 % |" in text and "## Unfinished tasks" in text
    for name in ("json", "md"):
        report(log, "--out", tmp_path / name, "--format", name)
        assert (tmp_path / name / f"report.{name}").read_text().count("app.task1") > 1
        check_access(tmp_path / name)
    with cystore.open(tmp_path / "empty") as store:
        store.put("T", b"")
    assert "no task in this time" in report(tmp_path / "empty")
    assert as_json(log, tmp_path / "empty")["facts"] == found["facts"], "several stores"


def test_time_tasks_and_columns(log, store_path):
    found = as_json(
        log, "--name", "app.task1", "--name", "app.mail", "--columns", "count,failed", "--top", "1"
    )
    assert found["tables"]["names"] == [{"name": "app.task1", "count": 10, "failed": 2}]
    assert set(found["tables"]["workers"][0]) == {"worker", "count", "failed"}
    assert len(found["tables"]["workflows"]) == 1 and found["facts"]["unfinished"] == 1
    assert "| task | failed |" in report(log, "--columns", "failed")
    assert as_json(log, "--name", "nobody")["facts"]["runs"] == 0
    with cystore.open(store_path, read_only=True) as store:
        times = [message.store_timestamp_ms for message in store.scan()]
    assert as_json(log, "--since", times[0], "--until", times[-1])["facts"]["runs"] == 40
    assert as_json(log, "--until", times[0] - 1)["facts"]["runs"] == 0
    assert as_json(log, "--since", times[-1] + 1)["facts"]["runs"] == 0
    assert as_json(log, "--since", "1h")["facts"]["runs"] == 40
    for words, why in (
        (["--since", "soon"], "is not a time"),
        (["--columns", "count,size"], "columns must name some of count, failed"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "must be before"),
        (["--top", "0"], "must be at least 1"),
    ):
        assert why in report(log, *words, code=2)


def test_a_text_of_a_task_makes_no_markdown(store_path):
    odd = "a|b](http://x)<script>`x`\n# head"
    with cystore.open(store_path) as store:
        for kind in (events.STARTED, events.FAILED):
            store.put_many([event_message(kind, odd, odd, exception=odd if kind == events.FAILED else None)])
    text = report(store_path)
    assert "\n# head" not in text
    assert "a\\|b\\](http://x)\\<script\\>\\`x\\`\\\\n\\# head" in text
    (row,) = json.loads(report(store_path, "--json"))["tables"]["tracebacks"]
    assert row["exception"] == odd


ODD = (
    {"runtime": 10**400, "exception": "No such file: '/tmp/\udcff'"},
    {"runtime": float("inf")},
    {"retries": 10**400},
    {"eta": "9999-12-31T23:59:59+00:00"},
    {"eta": "0001-01-01T00:00:00+14:00"},
)


def test_an_odd_detail_of_one_event_ends_no_report(log, store_path):
    """Seen: OverflowError for a number of 400 digits, ArrowInvalid for a time that is far away."""
    with cystore.open(store_path) as store:
        for number, details in enumerate(ODD):
            kinds = events.SENT, events.STARTED, events.FAILED
            store.put_many([event_message(kind, f"odd{number}", "app.odd", **details) for kind in kinds])
            store.put_many([event_message(events.SENT, f"waits{number}", "app.odd", **details)])
    assert as_json(log)["facts"]["runs"] == 40 + len(ODD)


def test_damage_is_an_error_or_stepped_over(log, store_path):
    with cystore.open(store_path, read_only=True) as store:
        place = next(message.physical_offset for message in store.scan() if message.tags == events.SUCCEEDED)
    damage(store_path, place)
    assert "is damaged" in report(log, code=2)
    assert json.loads(report(log, "--skip-damaged", "--json"))["facts"]["runs"] == 39


def test_what_is_missing_is_named(log, tmp_path):
    assert "there is no store" in report(tmp_path / "nothing", "--format", "md", code=2)
    without = WITHOUT_SPARK.replace("('pyspark', 'py4j')", "('matplotlib', 'pyarrow')")
    for words, names in ((["--out", tmp_path / "out"], "pyarrow, matplotlib"), (["--json"], "pyarrow")):
        command = [sys.executable, "-c", without, "report", str(log), *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        assert done.returncode == 2
        assert f"the report needs {names}: pip install 'cystore[report]'" in done.stderr
