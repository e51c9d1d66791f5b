"""Goal: a task that succeeds after retries is the same tries for every reader: `top`, `slow` and `history`, the report
with and without Spark, `task_runs`, `read_runs`, the daily numbers. Method: the log of a real worker, and the same log
as earlier versions wrote it, whose SUCCEEDED names no try; logs made by chance, cut at any place."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cystore import Message
from cystore.celery import history
from cystore.celery.base import events as layout
from cystore.celery.lifecycle import searches, statistics
from cystore.reports import attempts, report_tables, task_layout
from cystore.spark import task_events, task_runs
from cystore.spark.jobs import aggregate, report_here
from cystore.spark.jobs.report import write_report
from tests.celery.conftest import PATIENCE_S, fleet_in
from tests.spark.conftest import STORE_OPTIONS
from tests.support.celery import work
from tests.support.small_stores import open_small

NAME = work.third_time_lucky.name
RETRIES = 2  # of `third_time_lucky`, before it succeeds
TASKS = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> list[Message]:
    """The lifecycle log of a worker: three tasks that succeed at their third try."""
    with fleet_in(tmp_path_factory.mktemp("retries")) as fleet:
        fleet.start("--concurrency=2")
        results = [fleet.task(work.third_time_lucky).delay() for _ in range(TASKS)]
        assert [one.get(timeout=PATIENCE_S) for one in results] == [RETRIES] * TASKS
        store = fleet.backend.store
        while True:
            position = store.wrote_position
            found = list(history.events(store, name=NAME))[::-1]
            kinds = Counter(event.event for event in found)
            # A child sends the next try before it logs RETRIED, so another child may have succeeded already.
            if kinds[layout.SUCCEEDED] == TASKS and kinds[layout.RETRIED] == RETRIES * TASKS:
                return [
                    Message(
                        topic=layout.EVENTS, body=layout.body_of({**event.details, "v": None}),
                        queue_id=event._message.queue_id, tags=event.event,
                        keys=event._message.keys, properties={"task": NAME},
                    )
                    for event in found
                ]  # fmt: skip
            assert store.wait_log(position, PATIENCE_S)


def as_it_was(message: Message) -> Message:
    """The event as versions before this one wrote it."""
    if message.tags != layout.SUCCEEDED:
        return message
    fields = json.loads(bytes(message.body))
    assert fields.pop("retries") == RETRIES
    return Message(
        topic=message.topic, body=json.dumps(fields).encode(), queue_id=message.queue_id, tags=message.tags,
        keys=message.keys, properties={"task": NAME},
    )  # fmt: skip


@pytest.fixture(params=["as it is", "as it was"])
def store(request, log, tmp_path):
    with open_small(tmp_path / "store") as store:
        for message in log:  # one by one: each has a time of its own
            store.put_many([message if request.param == "as it is" else as_it_was(message)])
        store.flush()
        yield store


def test_all_readers_agree_on_a_success_after_retries(spark, store, tmp_path, monkeypatch):
    (top,) = statistics.by_name(store)
    assert (top.name, top.count, top.succeeded, top.failed, top.retried) == (NAME, TASKS, TASKS, 0, 6)
    ends = history.events(store, states=searches.SLOW_KINDS["run"])
    assert [life.retries for _, life in searches.slowest(store, ends, "run", 10)] == [RETRIES] * TASKS
    wanted = Counter({(0, "RETRIED"): TASKS, (1, "RETRIED"): TASKS, (2, "SUCCEEDED"): TASKS})
    events = task_events.task_events(spark.read, str(store.path), **STORE_OPTIONS)
    for runs in (
        task_runs.task_runs(events),
        task_runs.read_runs(spark.read, str(store.path), **STORE_OPTIONS),
    ):
        rows = runs.collect()
        assert Counter((row.retries, row.outcome) for row in rows) == wanted
        assert all(row.sent and row.received and row.started and row.wait is not None for row in rows)
        assert all(row.started <= row.ended for row in rows)
    summaries = [write_report(None, str(store.path), tmp_path / "alone")]
    summaries.append(write_report(spark, str(store.path), tmp_path / "Spark", **STORE_OPTIONS))
    monkeypatch.setattr(report_here, "SMALL_BYTES", 0)
    summaries.append(write_report(spark, str(store.path), tmp_path / "Spark counts", **STORE_OPTIONS))
    for summary in summaries:
        assert {**summary, "out": ""} == {"tasks": 1, "runs": TASKS, "failed": 0, "retries": 6, "out": ""}
        (row,) = pq.read_table(Path(summary["out"]) / "names").to_pylist()
        assert (row["count"], row["failed"], row["retried"]) == (TASKS, 0, 6)
    done = aggregate.aggregate(spark, str(store.path), tmp_path / "daily", **STORE_OPTIONS)
    days = [pq.read_table(path) for path in (tmp_path / "daily").rglob("tasks.parquet")]
    assert done["days"] == len(days)
    assert sum(sum(day["count"].to_pylist()) for day in days) == TASKS
    assert sum(sum(day["retried"].to_pylist()) for day in days) == 6


KINDS = ("SENT", "RECEIVED", "STARTED", "RETRIED", "REVOKED", *layout.ENDS_OF_CODE)
rows_of_a_log = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(KINDS), st.integers(0, 2), st.booleans()), max_size=14
)


def told(log) -> list[tuple[str, str, int | None]]:
    """(task, event, retries) of each row; None for an end that names no try."""
    return [
        (task, kind, None if lacks and kind in layout.ENDS_OF_CODE else retries)
        for task, kind, retries, lacks in log
    ]


def wanted(log) -> dict[tuple[str, int], str | None]:
    """The outcome of each try, by the rule for a single event."""
    newest: dict[str, int] = {}
    found: dict[tuple[str, int], str | None] = {}
    for task, kind, retries in log:
        number = layout.try_of(kind, retries or 0, newest.get(task))
        if kind == "STARTED":
            newest[task] = number
        known = found.setdefault((task, number), None)
        is_counted = kind in ("RETRIED", *layout.ENDS_OF_CODE) and kind != "IGNORED"
        is_only_end = kind in task_layout.UNCOUNTED and known in (None, *task_layout.UNCOUNTED)
        if is_counted or is_only_end:
            found[task, number] = kind
    return found


def columns(log, first_us: int) -> pa.Table:
    """The rows as `attempts.events_of` gives them, a millisecond apart."""
    made = {
        "time": pa.array([1000 * n + first_us for n in range(len(log))], pa.int64()).cast(attempts._TIME),
        "event": [kind for _, kind, _ in log],
        "task_id": [task for task, *_ in log],
        "root_id": [task for task, *_ in log],
        "retries": pa.array([retries for *_, retries in log], pa.int32()),
        "requeue": pa.nulls(len(log), pa.bool_()),
        "runtime": pa.nulls(len(log), pa.float64()),
    }
    texts = ("name", "worker", "queue", "store", "exception", "traceback", "eta")
    return pa.table({**made, **{name: pa.nulls(len(log), pa.string()) for name in texts}})


@given(rows_of_a_log, st.integers(0, 14), st.integers(0, 14))
@settings(deadline=None)
def test_an_event_belongs_to_the_same_try_however_the_log_is_cut(log, one, other):
    log = told(log)
    low, high = sorted(min(cut, len(log)) for cut in (one, other))
    parts = [
        batch
        for begin, end in ((0, low), (low, high), (high, len(log)))
        if begin < end
        for batch in attempts.attempts_of(columns(log[begin:end], 1000 * begin)).to_batches()
    ]
    parts_table = pa.Table.from_batches(parts, schema=attempts.SCHEMA)
    runs = report_tables.joined(parts_table)
    tries = report_tables._with_tries(parts_table.combine_chunks())["retries"].to_pylist()
    assert set(zip(parts_table["task_id"].to_pylist(), tries, strict=True)) == set(wanted(log))
    outcomes = Counter(zip(runs["task_id"].to_pylist(), runs["outcome"].to_pylist(), strict=True))
    assert outcomes == Counter((task, outcome) for (task, _), outcome in wanted(log).items())


def test_spark_finds_the_same_tries(spark):
    """The rows of all tries in one frame, in any order, as events and as parts."""
    chosen = [
        [("a", "STARTED", 0), ("a", "RETRIED", 0), ("a", "STARTED", 1), ("a", "RETRIED", 1),
         ("a", "STARTED", 2), ("a", "SUCCEEDED", None)],
        [("a", "STARTED", 0), ("a", "STARTED", 1), ("a", "RETRIED", 0), ("a", "FAILED", None)],
        [("a", "SUCCEEDED", None), ("a", "STARTED", 1)],
        [("a", "STARTED", 2), ("a", "FAILED", 2), ("a", "SENT", 0), ("a", "STARTED", 0), ("a", "SUCCEEDED", None)],
        [("a", "STARTED", 0), ("a", "SUCCEEDED", None), ("a", "REVOKED", 0)],
        [("a", "RECEIVED", 1), ("a", "REVOKED", 1)],
        [("a", "STARTED", 0), ("a", "IGNORED", None)],
    ]  # fmt: skip
    log = [(f"{number}", kind, retries) for number, one in enumerate(chosen) for _, kind, retries in one]
    whole = columns(log, 0).append_column("failed", pa.nulls(len(log), pa.bool_()))
    rows = spark.createDataFrame(
        [(row["time"], row["event"], row["name"], row["task_id"], row["root_id"], None, row["retries"] or 0,
          False, None, None, None) for row in whole.to_pylist()[::-1]],
        "time TIMESTAMP, event STRING, name STRING, task_id STRING, root_id STRING, runtime DOUBLE, retries INT, "
        "requeue BOOLEAN, exception STRING, traceback STRING, eta STRING",
    )  # fmt: skip
    parts = [
        row
        for at in range(len(log))
        for row in attempts.attempts_of(columns(log[at : at + 1], 1000 * at)).to_pylist()
    ]
    cut = spark.createDataFrame(pa.Table.from_pylist(parts, attempts.SCHEMA))
    for runs in (task_runs.task_runs(rows), task_runs.joined(cut)):
        found = {(row.task_id, row.retries): row.outcome for row in runs.collect()}
        assert found == wanted(log)
