"""Goal: the report counts what happened and shows it. Method: events written as Celery's workers write them, counted
by hand; made-up events over several hours; a stream that is fed while it runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

import cystore
from cystore.celery.base import events as layout
from cystore.celery.base import records
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.reports import report as reports
from cystore.reports.report_folder import check_out
from cystore.spark import report, task_events, task_runs
from cystore.spark.__main__ import JOBS, build_parser, cause, main
from cystore.spark.jobs import report_here
from cystore.spark.jobs.live import LENGTH
from cystore.spark.jobs.report import write_report
from cystore.spark.jobs.running import source_options
from tests.spark.conftest import STORE_OPTIONS
from tests.support.disks.access import check_access, no_umask

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = (
    "time TIMESTAMP, event STRING, name STRING, task_id STRING, root_id STRING, runtime DOUBLE, retries INT, "
    "requeue BOOLEAN, "
    "exception STRING, traceback STRING, eta STRING"
)


def told(event, name, task_id, root_id=None, group_id=None, **details):
    return cystore.Message(
        topic=layout.EVENTS,
        body=layout.body_of(details),
        queue_id=records.queue_of(name),
        keys=layout.keys_of(task_id, root_id, group_id),
        tags=event,
        properties={"task": name} if name else {},
    )


def row(event, at_s, name="shop.pay", task_id="t", root_id=None, **details):
    known = {
        "runtime": None,
        "retries": 0,
        "requeue": False,
        "exception": None,
        "traceback": None,
        "eta": None,
    }
    return (
        HOUR + timedelta(seconds=at_s),
        event,
        name,
        task_id,
        root_id or task_id,
        *{**known, **details}.values(),
    )


def ddl(frame: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in frame.schema)


def test_every_event_comes_with_its_ids_and_details(spark, make_store):
    store = make_store()
    odd = "id with % and + and ünï"
    store.put_many(
        [
            told("STARTED", "shop.pay", odd, "root 1", "g"),
            told(
                "FAILED",
                "shop.pay",
                "t2",
                runtime=1.5,
                retries=2,
                exception="ValueError('x')",
                traceback="...",
                worker="w@h",
            ),
            told("SENT", None, None),
            cystore.Message(topic=layout.EVENTS, body=b"no json", keys=("t3",), tags="STARTED"),
        ]
    )
    store.put("celery_results", b"{}", tags="SUCCESS", keys=("t2",))
    store.flush()
    events = task_events.task_events(spark.read, str(store.path), **STORE_OPTIONS)
    assert ddl(events) == task_events.SCHEMA
    found = events.orderBy("task_id").collect()
    by_id = {one.task_id: one for one in found}
    assert by_id.keys() == {odd, "t2", "t3", None}
    assert (by_id[odd].root_id, by_id[odd].event, by_id[odd].retries) == ("root 1", "STARTED", 0)
    assert (by_id["t2"].root_id, by_id["t2"].runtime, by_id["t2"].retries, by_id["t2"].worker) == (
        "t2",
        1.5,
        2,
        "w@h",
    )
    assert (by_id["t3"].name, by_id["t3"].runtime, by_id["t3"].requeue) == (None, None, False)


def test_numbers_by_name_and_hour(spark):
    rows = [row("SUCCEEDED", n, task_id=f"s{n}", runtime=float(n + 1)) for n in range(100)]
    rows += [row("FAILED", 10, task_id="f", runtime=0.5), row("TIMED_OUT", 20, task_id="o")]
    rows += [row("RETRIED", 30, task_id="r"), row("REJECTED", 40, task_id="q", requeue=True)]
    rows += [
        row("SUCCEEDED", 3600, task_id="later", runtime=7.0),
        row("SUCCEEDED", 0, name="other", task_id="x"),
    ]
    rows += [row("RECEIVED", 7200, task_id="alone"), row("SUCCEEDED", 5, name=None, task_id="nameless")]
    made = spark.createDataFrame(rows, SCHEMA)
    found = {(one.name, one.hour.timestamp()): one for one in report.hourly(made).collect()}
    assert found.keys() == {
        ("shop.pay", HOUR.timestamp()),
        ("shop.pay", HOUR.timestamp() + 3600),
        ("other", HOUR.timestamp()),
    }
    first = found["shop.pay", HOUR.timestamp()]
    assert (first["count"], first.failed, first.retried) == (102, 2, 1)
    assert first.failure_rate == pytest.approx(2 / 102)
    assert (first.runtime_p50, first.runtime_p95, first.runtime_p99) == (50.0, 95.0, 99.0)
    assert first.wait_p50 is None
    names = report.names(made).collect()
    assert [(one.name, one["count"]) for one in names] == [("shop.pay", 103), ("other", 1)]


def test_a_wait_is_from_the_sending_or_the_eta_of_each_attempt_to_its_begin(spark):
    eta = (HOUR + timedelta(seconds=58)).isoformat()
    rows = [
        *(row("SENT", 0), row("RECEIVED", 1), row("STARTED", 3)),
        *(row("SENT", 10, retries=1), row("STARTED", 14, retries=1)),
        *(row("RECEIVED", 20, task_id="unsent"), row("STARTED", 21, task_id="unsent")),
        *(row("SENT", 30, task_id="eta", eta=eta), row("STARTED", 60, task_id="eta", eta=eta)),
        *(row("RECEIVED", 70, task_id="waiting"),),
        *(row("SENT", 81, task_id="skewed"), row("STARTED", 80, task_id="skewed")),
    ]
    runs = task_runs.task_runs(spark.createDataFrame(rows, SCHEMA)).where("wait IS NOT NULL")
    assert sorted(one.wait for one in runs.collect()) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_page_has_the_schemas_of_the_tables():
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    for name, schema in (("task_events", task_events.SCHEMA), ("task_runs", task_runs.SCHEMA)):
        columns = (column.split() for column in schema.split(", "))
        assert f"| `{name}` | {', '.join(f'`{column}` {kind.lower()}' for column, kind in columns)} |" in page


def test_a_run_is_one_attempt_with_all_that_is_known_of_it(spark):
    rows = [
        *(row("SENT", 0), row("RECEIVED", 1), row("STARTED", 2), row("RETRIED", 4, runtime=2.0)),
        *(row("SENT", 5, retries=1), row("RECEIVED", 6, retries=1), row("REDELIVERED", 7, retries=1)),
        *(row("STARTED", 8, retries=1), row("FAILED", 9, retries=1, runtime=1.0, exception="shop.E('1')")),
        *(row("STARTED", 20, task_id="on"), row("REJECTED", 21, task_id="on", requeue=True)),
        row("SENT", 1, task_id=None),
    ]
    made = task_runs.task_runs(spark.createDataFrame(rows, SCHEMA))
    assert made.schema.simpleString() == spark.createDataFrame([], task_runs.SCHEMA).schema.simpleString()
    found = {(one.task_id, one.retries): one for one in made.collect()}
    assert found.keys() == {("t", 0), ("t", 1), ("on", 0)}
    first, second, going_on = found["t", 0], found["t", 1], found["on", 0]
    at = [
        (one.timestamp() - HOUR.timestamp())
        for one in (second.sent, second.received, second.started, second.ended)
    ]
    assert at == [5, 6, 8, 9]
    assert (first.outcome, first.failed, first.runtime, first.deliveries) == ("RETRIED", False, 2.0, 1)
    assert (second.outcome, second.failed, second["class"], second.deliveries) == (
        "FAILED",
        True,
        "shop.E",
        2,
    )
    assert (second.wait, len(second.fingerprint)) == (3.0, 16)
    assert (going_on.outcome, going_on.ended, going_on.failed, going_on.fingerprint) == (
        None,
        None,
        False,
        None,
    )


def test_failures_of_one_line_are_one_row(spark):
    """Seen: 5,000 failures of one line were 5,000 rows, for messages, ids and paths differ."""
    at = (
        'Traceback (most recent call last):\n  File "/tmp/job-{0}/{1}/shop.py", line 17, in pay\n    raise E({0})\n'
        "shop.E: order {0} of {1} at 0x{0:x} was refused"
    )
    ids = ["0123456789abcdef", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "77"]
    rows = [
        row("FAILED", n, task_id=f"a{n}", exception=f"shop.E({n})", traceback=at.format(n, ids[n % 3]))
        for n in range(300)
    ]
    rows += [
        row("FAILED", 1, task_id="b", exception="shop.E(1)", traceback=at.format(1, "x").replace("17", "18"))
    ]
    rows += [
        row("FAILED", 1, task_id="c", exception="shop.E(1)", traceback=at.format(1, 1).replace("pay", "ship"))
    ]
    rows += [row("FAILED", 1, task_id="d", exception="shop.F(1)", traceback=at.format(1, 1))]
    found = report.tracebacks(spark.createDataFrame(rows, SCHEMA)).collect()
    assert [one["count"] for one in found] == [300, 1, 1, 1]
    assert len({one.fingerprint for one in found}) == 4


def test_failures_are_grouped_by_where_they_came_from(spark):
    at = 'File "shop.py", line {}, in pay\n  <Card object at 0x7f{:04x}>'
    rows = [
        row("FAILED", n, task_id=f"a{n}", exception=f"ValueError('n {n}')", traceback=at.format(7, n))
        for n in range(5)
    ]
    rows += [row("FAILED", 9, task_id="b", exception="shop.NoMoney()", traceback=at.format(8, 1))]
    rows += [row("CHILD_LOST", 10, task_id="c"), row("CHILD_LOST", 11, task_id="d", requeue=True)]
    found = report.tracebacks(spark.createDataFrame(rows, SCHEMA)).collect()
    assert [(one["count"], one["class"], one.task_id) for one in found] == [
        (5, "ValueError", "a4"),
        (1, "CHILD_LOST", "c"),
        (1, "shop.NoMoney", "b"),
    ]
    assert len(report.tracebacks(spark.createDataFrame(rows, SCHEMA), top=1).collect()) == 1


def test_workflows_are_measured_from_their_first_event_to_their_last_end(spark):
    rows = [
        *(
            row("SENT", 0, task_id="root", name="shop.order"),
            row("SUCCEEDED", 2, task_id="root", name="shop.order"),
        ),
        *(row("SENT", 3, task_id="child", root_id="root"), row("FAILED", 9, task_id="child", root_id="root")),
        *(row("RECEIVED", 500, task_id="child", root_id="root"),),
        *(row("SENT", 0, task_id="quick"), row("SUCCEEDED", 1, task_id="quick")),
        *(row("SENT", 0, task_id="alone"), row("SUCCEEDED", 100, task_id="alone")),
        *(row("SENT", 0, task_id="never ended"),),
    ]
    found = report.workflows(spark.createDataFrame(rows, SCHEMA)).collect()
    assert [(one.root_id, one.name, one.seconds, one.tasks, one.failed) for one in found] == [
        ("root", "shop.order", 9.0, 2, 1),  # before a task by itself that took longer
        ("alone", "shop.pay", 100.0, 1, 0),
        ("quick", "shop.pay", 1.0, 1, 0),
    ]


def test_unfinished_tasks_are_those_whose_newest_attempt_has_no_end(spark):
    rows = [
        *(row("SENT", 0, task_id="done"), row("SUCCEEDED", 9, task_id="done")),
        *(row("SENT", 2, task_id="waits"),),
        *(row("SENT", 1, task_id="runs"), row("RECEIVED", 2, task_id="runs")),
        *(row("STARTED", 3, task_id="runs"),),
        *(row("STARTED", 1, task_id="again"), row("SENT", 4, task_id="again", retries=1)),
        *(row("SENT", 1, task_id="ended later"), row("FAILED", 8, task_id="ended later", retries=1)),
    ]
    found = report.unfinished(spark.createDataFrame(rows, SCHEMA), 2).collect()
    assert [(one.task_id, one.retries, one.state, one.since.second, one.total) for one in found] == [
        ("runs", 0, "started", 1, 3),
        ("waits", 0, "sent", 2, 3),
    ]


def test_the_report_is_parquet_and_one_page_that_needs_nothing_else(spark, make_store, tmp_path):
    store = make_store()
    for n in range(20):
        name = f"shop.<b>{n % 3}</b>"
        store.put_many(
            [
                told("SENT", name, f"t{n}"),
                told("STARTED", name, f"t{n}"),
                told("SUCCEEDED", name, f"t{n}", runtime=0.1 * n)
                if n % 5
                else told("FAILED", name, f"t{n}", exception="E('<script>')", traceback="<img src=x>"),
            ]
        )
    store.flush()
    out = tmp_path / "day: 1 (süß)" / "out"
    out.parent.mkdir()
    summary = write_report(spark, str(store.path), out)
    assert summary == {"tasks": 3, "runs": 20, "failed": 4, "retries": 0, "out": str(out)}
    assert {path.name for path in out.iterdir()} == {
        "hourly",
        "names",
        "tracebacks",
        "workers",
        "workflows",
        "report.html",
        ".cystore-report",
    }
    assert spark.read.parquet(str(out / "names")).count() == 3
    text = (out / "report.html").read_text()
    assert text.count("<script") == 1, "the page's own"
    assert "<img" not in text
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert text.count("<svg") == 2
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    with pytest.raises(StoreConfigError, match="exists"):
        write_report(spark, str(store.path), out)
    store.put_many([told("SUCCEEDED", "new", "n", runtime=1.0)])
    store.flush()
    assert write_report(spark, [str(store.path)], out, overwrite=True)["tasks"] == 4
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_report_is_for_its_owner_alone_or_for_the_group_of_the_folder_above(make_store, tmp_path, shared):
    """A report shows exceptions and tracebacks: whoever may not read the store may not read them either."""
    store, out = make_store(), tmp_path / "reports" / "day"
    store.put_many([told("FAILED", "shop.pay", "t", exception="E('secret')", traceback="a")])
    store.flush()
    (tmp_path / "reports").mkdir(mode=0o755)
    if shared:
        (tmp_path / "reports").chmod(0o2770)
    with no_umask():
        for _ in range(2):
            write_report(None, str(store.path), out, overwrite=True)
            check_access(out, **({"file": 0o660, "folder": 0o2770} if shared else {}))


def test_a_report_is_the_same_whoever_reads_and_whoever_counts(spark, make_store, tmp_path, monkeypatch):
    """Seen: a million events took 40 s, most of them Spark's, for what one process reads in 5. Later 74 s, because
    Spark counted 250,000 attempts in 200 tasks for each table."""
    store = make_store()
    for n in range(120):
        name, root = f"shop.{n % 3}", None if n % 4 else f"t{n - n % 12}"
        details = {"worker": f"w{n % 2}@host", "retries": n % 2}
        ends = [
            told("SUCCEEDED", name, f"t{n}", root, runtime=0.01 * n, **details),
            told(
                "FAILED", name, f"t{n}", root, exception=f"E({n})", traceback=f'File "a{n}.py", line 1, in b'
            ),
            told("RETRIED", name, f"t{n}", root, runtime=3.0, **details),
            told("REJECTED", name, f"t{n}", root, requeue=True, **details),
            cystore.Message(topic=layout.EVENTS, body=b"no json", keys=("x",), tags="SUCCEEDED"),
        ]
        store.put_many(
            [
                told("SENT", name, f"t{n}", root, retries=n % 2),
                told("RECEIVED", name, f"t{n}", root, **details),
                told("SENT", name, f"never {n}", root),
            ]
        )
        store.put_many([told("STARTED", name, f"t{n}", root, **details), ends[n % 5]])
    store.flush()
    summaries = [
        write_report(one, str(store.path), tmp_path / name, **STORE_OPTIONS)
        for one, name in ((spark, "Spark reads"), (None, "no Spark"))
    ]
    monkeypatch.setattr(report_here, "SMALL_BYTES", 0)
    summaries.append(
        write_report(spark, str(store.path), tmp_path / "Spark reads and counts", **STORE_OPTIONS)
    )
    summaries.append(reports.write_report([store.path], tmp_path / "no PySpark"))
    assert [{**one, "out": ""} for one in summaries] == [{**summaries[0], "out": ""}] * 4
    assert summaries[0]["failed"] == 24
    for table in ("hourly", "names", "workers", "tracebacks", "workflows"):
        first, *others = (pq.read_table(Path(one["out"]) / table) for one in summaries)
        for other in others:
            assert first.schema.names == other.schema.names, table
            assert first.to_pylist() == other.to_pylist(), table
    pages = [Path(one["out"], "report.html").read_text() for one in summaries]
    assert len({page[page.index("Unfinished tasks") :] for page in pages}) == 1
    parts = task_runs.task_runs(task_events.task_events(spark.read, str(store.path), **STORE_OPTIONS))
    fast = task_runs.read_runs(spark.read, str(store.path), **STORE_OPTIONS)
    assert parts.schema.simpleString() == fast.schema.simpleString()
    assert sorted(map(str, parts.collect())) == sorted(map(str, fast.collect()))


def test_a_report_takes_no_place_but_that_of_a_report(make_store, tmp_path):
    """Seen: `report STORE --out STORE --overwrite` put the report in place of the store."""
    store = make_store()
    store.put("T", b"precious")
    other = tmp_path / "other"
    other.mkdir()
    for out, why in (
        (store.path, "not contain each other"),
        (Path(store.path, "index"), "not contain each other"),
        (tmp_path, "not contain each other"),
        (other, "is not a report"),
        ("s3://bucket/report", "is a URL"),
    ):
        with pytest.raises(StoreConfigError, match=why):
            check_out(out, [str(store.path)], overwrite=True)
    with pytest.raises(StoreFormatError, match="there is no store here"):
        check_out(tmp_path / "out", [str(store.path), "/nope"], overwrite=True)
    assert other.exists() and store.get("T", 0, 0).messages


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["report", "--out", "{out}", "--top", "0"], "top must be a whole number from 1"),
        (["report", "--out", "{out}", "--begin", "2026-01-02", "--end", "2026-01-01"], "must be before end"),
        (["report", "--out", "{file}"], "is a file"),
        (["report", "--out", "{file}/out", "--overwrite"], "is a file"),
        (["aggregate", "--out", "{file}"], "is a file"),
        (["live", "--out", "{file}"], "is a file"),
        (["live", "--out", "{out}", "--window", "soon"], "window must be a length of time"),
        (["live", "--out", "{out}", "--window", "0 seconds"], "window must be longer"),
        (["live", "--out", "{out}", "--window", "1 month"], "window must be a length of time"),
        (["live", "--out", "{out}", "--watermark", "-1 hour"], "watermark must be a length of time"),
        (["live", "--out", "{out}", "--every", "0"], "every must be a length of time"),
        (["archive", "{file}"], "is a file"),
        (["archive", "s3://bucket/archive"], "is a URL"),
        (["archive", "{out}", "--step-bytes", "0"], "step_bytes and piece_bytes 1 or more"),
        (["archive", "{out}", "--expiring-within-h", "nan"], "expiring_within_h must be 0 or more"),
        (["archive", "{out}", "--format", "orc"], "format"),
        (["scrub", "--range-mib", "0"], "must be a whole number from 1"),
        (["scrub", "--range-mib", "many"], "must be a whole number from 1"),
        (["scrub", "--master", "lokal"], "is no master of Spark"),
        (["live", "--out", "{out}", "--master", "local[]"], "is no master of Spark"),
    ],
)
def test_what_can_be_checked_is_checked_before_spark_starts(
    make_store, tmp_path, capsys, monkeypatch, arguments, why
):
    store, file = make_store(), tmp_path / "file"
    file.touch()
    job, *more = [word.format(out=tmp_path / "out", file=file) for word in arguments]
    monkeypatch.setattr(JOBS[job], "own_session", lambda *_: pytest.fail("a session was started"))
    try:
        status = main([job, str(store.path), *more])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("length", ["10 seconds", "1 hour 30 minutes", "interval 2 Days", "500 milliseconds"])
def test_live_takes_lengths_of_time_as_spark_does(length):
    assert LENGTH.fullmatch(length)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[2,3]",
        "local-cluster[1,1,1024]",
        "yarn",
        "spark://h:7077",
        "k8s://https://h",
    ],
)
def test_masters_of_spark_are_taken(master):
    assert build_parser().parse_args(["scrub", "store", "--master", master]).master == master


def test_settings_of_store_and_spark_are_options_of_every_job(make_store, tmp_path, capsys):
    """The page promised --set and --config for each job; two of five had the first, none --conf."""
    parser = build_parser()
    for job, more in (
        ("scrub", []),
        ("rebuild", []),
        ("archive", ["f"]),
        ("report", ["--out", "o"]),
        ("aggregate", ["--out", "o"]),
        ("live", ["--out", "o"]),
    ):
        given = ["--conf", "spark.a=b=c", "--set", "services=none", "--config", "f.toml"]
        options = parser.parse_args([job, "store", *more, *given])
        assert (options.conf, options.settings, options.config) == (
            [("spark.a", "b=c")],
            ["services=none"],
            "f.toml",
        )
    with pytest.raises(SystemExit):
        parser.parse_args(["scrub", "store", "--conf", "driver.memory=1g"])
    assert "no setting of Spark" in capsys.readouterr().err

    store = make_store()
    store.put_many([told("SUCCEEDED", "a", "t", runtime=1.0)])
    store.flush()
    file = tmp_path / "store.toml"
    file.write_text('services = "none"\nmax_index_num = 1000')
    given = ["report", str(store.path), "--set", "max_queues=2048", "--config", str(file), "--json"]
    options = parser.parse_args([*given, "--out", "o"])
    assert source_options(options) == {
        "cystore.services": "none",
        "cystore.max_index_num": "1000",
        "cystore.max_queues": "2048",
    }
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    for wrong in (["--set", "nope=1"], ["--config", "/nope.toml"]):
        assert main(["report", str(store.path), *wrong, "--out", str(tmp_path / "no")]) == 2
        assert "nope" in capsys.readouterr().err


def test_jobs_make_no_store(tmp_path, capsys):
    """Seen: `archive /nope FOLDER` made an empty store and left with 0."""
    nope, folder = str(tmp_path / "nope"), str(tmp_path / "folder")
    for arguments in (
        ["archive", nope, folder],
        ["report", nope, "--out", folder],
        ["aggregate", nope, "--out", folder],
        ["live", nope, "--out", folder],
        ["scrub", nope],
        ["rebuild", nope],
    ):
        assert main([*arguments, "--master", "local[1]"]) == 2
        told = capsys.readouterr().err
        assert "no store here" in told and len(told.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_cause_is_found_in_what_spark_makes_of_it():
    text = "Job aborted\n  at scala\ncystore.errors.StoreFormatError: there is no store here: /x\n  at java"
    assert cause(RuntimeError(text)) == "there is no store here: /x"
    assert cause(ValueError("first\nsecond")) == "ValueError: first"
    of_java = "An error occurred while calling o1.load.\n: java.io.IOException: no route\n\tat a.B.c(D:1)"
    assert cause(RuntimeError(of_java)) == "java.io.IOException: no route"


@pytest.mark.slow
def test_a_report_of_some_time_only(spark, make_store, tmp_path):
    store = make_store()
    for n in range(3):
        store.put_many([told("SUCCEEDED", "a", f"t{n}", runtime=1.0)])
    store.flush()
    times = sorted(message.store_timestamp_ms for message in store.scan())
    end = datetime.fromtimestamp(times[-1] / 1000 + 1, UTC)
    summary = write_report(
        spark, str(store.path), tmp_path / "all", begin=HOUR - timedelta(days=9999), end=end
    )
    assert summary["runs"] == 3
    summary = write_report(spark, str(store.path), tmp_path / "none", begin=end, end=end + timedelta(days=1))
    assert summary["runs"] == 0


def test_a_report_that_fails_leaves_nothing(spark, tmp_path):
    with pytest.raises(Exception, match="there is no store here"):
        write_report(spark, str(tmp_path / "missing"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_live_report_tells_each_window_once(spark, make_store, tmp_path):
    store = make_store()
    store.put_many([told("SUCCEEDED", "a", f"t{n}", runtime=1.0) for n in range(4)])
    store.put_many([told("FAILED", "a", "t9"), told("RETRIED", "b", "t8"), told("SENT", "c", "t7")])
    store.flush()
    stream = task_events.task_events(
        spark.readStream, str(store.path), startingOffsets="earliest", **STORE_OPTIONS
    )
    query = (
        report.live(stream, window="1 hour", watermark="1 second")
        .writeStream.outputMode("update")
        .format("memory")
        .queryName("live")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = {one.name: one for one in spark.sql("SELECT * FROM live").collect()}
    assert {name: (one["count"], one.failed, one.retried) for name, one in rows.items()} == {
        "a": (5, 1, 0),
        "b": (0, 0, 1),
    }
    assert json.dumps(rows["a"].runtime_p95) == "1.0"


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "", "--out", "r"),
        ("report", "{store}", "--out", ""),
        ("aggregate", "{store}", "--out", ""),
        ("archive", "{store}", ""),
        ("scrub", ""),
        ("rebuild", ""),
    ],
)
def test_an_empty_path_is_refused_by_its_name(tmp_path, monkeypatch, capsys, arguments):
    """Seen: it meant the current folder."""
    cystore.open(tmp_path / "s").close()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    try:
        status = main([argument.format(store=tmp_path / "s") for argument in arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert capsys.readouterr().err.endswith("path is empty\n")
    assert not list((tmp_path / "here").iterdir())
