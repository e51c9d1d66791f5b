"""Goal: daily numbers that are kept up to date by small runs are those of one run over everything, whenever a run is
killed, and a day that is over stays as it is. Method: made-up events with times of their own, in one local session; a
run that ends at each write."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as pds
import pytest

import cystore
from cystore.spark.jobs import aggregate as job
from cystore.system import files
from tests.support.disks.access import check_access, no_umask

START = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = (
    "time TIMESTAMP, event STRING, name STRING, task_id STRING, root_id STRING, runtime DOUBLE, retries INT, "
    "requeue BOOLEAN, "
    "exception STRING, traceback STRING, eta STRING"
)


def event(
    at_h: float, kind: str, task_id: str, name: str = "shop.pay", runtime: float | None = None
) -> tuple[Any, ...]:
    time = START + timedelta(hours=at_h)
    return time, kind, name, task_id, task_id, runtime, 0, False, None, None, None


def attempt(at_h: float, task_id: str, end: str = "SUCCEEDED", hours: float = 1.0) -> list[tuple[Any, ...]]:
    return [
        event(at_h, "SENT", task_id),
        event(at_h + hours / 2, "STARTED", task_id),
        event(at_h + hours, end, task_id, runtime=hours * 1800.0),
    ]


class Log:
    """In the place of the log: what a run may read of it so far."""

    def __init__(self, spark: Any, store: Path, monkeypatch: Any) -> None:
        self.spark, self.store, self.rows = spark, store, []
        self.read: list[Any] = []
        monkeypatch.setattr(job, "_events", self._events)

    def _events(self, spark: Any, stores: Any, begin_ms: int, options: Any) -> Any:
        self.read.append(datetime.fromtimestamp(begin_ms / 1000, UTC))
        return spark.createDataFrame([row for row in self.rows if row[0] >= self.read[-1]], SCHEMA)

    def run(self, out: Path, **options: Any) -> dict[str, Any]:
        return job.aggregate(self.spark, str(self.store), out, **options)


@pytest.fixture
def log(spark, make_store, monkeypatch):
    store = make_store()
    store.put("celery_events", b"{}")
    return Log(spark, store.path, monkeypatch)


def table(out: Path) -> list[dict[str, Any]]:
    found = pds.dataset(out / "daily", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["date"], row["name"]))


def counts(out: Path) -> dict[str, int]:
    return {row["date"]: row["count"] for row in table(out)}


@pytest.mark.slow
def test_small_runs_are_one_run_over_everything(log, tmp_path):
    for day in range(5):
        log.rows += attempt(24 * day + 3, f"a{day}") + attempt(24 * day + 23, f"over midnight {day}", hours=2)
        log.rows += attempt(24 * day + 5, f"f{day}", end="FAILED")
        done = log.run(tmp_path / "small")
        assert done["late"] == done["kept"] == 0
    assert log.read[0].year == 1970
    assert log.read[-1] == START + timedelta(days=2), "the open days and one before"
    assert done["open_from"] == "2026-03-05" and done["days"] == 3
    log.run(tmp_path / "whole")
    assert table(tmp_path / "small") == table(tmp_path / "whole")
    assert counts(tmp_path / "small") == {
        "2026-03-01": 2,
        **{f"2026-03-0{n}": 3 for n in (2, 3, 4, 5)},
        "2026-03-06": 1,
    }
    assert {row["failed"] for row in table(tmp_path / "small")} == {0, 1}
    assert {row["wait_p50"] for row in table(tmp_path / "small")} <= {1800.0, 3600.0}


@pytest.mark.slow
def test_late_events_change_open_days_alone(log, tmp_path):
    log.rows += attempt(1, "a") + attempt(25, "b") + attempt(60, "c")
    assert log.run(tmp_path / "out")["open_from"] == "2026-03-02"
    before = counts(tmp_path / "out")
    log.rows += attempt(26, "late, and in time") + attempt(2, "too late")
    done = log.run(tmp_path / "out")
    assert (done["late"], done["open_from"]) == (1, "2026-03-02")
    assert counts(tmp_path / "out") == {**before, "2026-03-02": 2}
    assert log.run(tmp_path / "out", watermark_h=0)["open_from"] == "2026-03-03"


@pytest.mark.parametrize("moments", [(2,), pytest.param(range(5), marks=pytest.mark.slow)])
def test_a_run_that_is_ended_at_any_write_is_repeated_by_the_next(log, tmp_path, monkeypatch, moments):
    for day in range(3):
        log.rows += attempt(24 * day + 3, f"a{day}")
    log.run(tmp_path / "out")
    for day in range(3, 6):
        log.rows += attempt(24 * day + 3, f"a{day}") + attempt(24 * (day - 2) + 4, f"b{day}")
    real, left = files.write_whole, 0

    def write(*arguments: Any, **options: Any) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", write)
        for left in moments:  # noqa: B007 - `write` counts it down
            with pytest.raises(KeyboardInterrupt):
                log.run(tmp_path / "out")
    log.run(tmp_path / "out")
    assert counts(tmp_path / "out") == {f"2026-03-0{day}": 1 + (day in (2, 3, 4)) for day in range(1, 7)}


def test_what_the_cleaner_removed_meanwhile_stays_in_the_numbers(log, tmp_path):
    log.rows += attempt(1, "a") + attempt(30, "b") + attempt(31, "c")
    log.run(tmp_path / "out")
    log.rows = attempt(40, "d") + attempt(50, "e")
    done = log.run(tmp_path / "out")
    assert (done["kept"], done["open_from"]) == (2, "2026-03-03") and job.exit_code(done) == 1
    known = {"2026-03-01": 1, "2026-03-02": 2, "2026-03-03": 1}
    assert counts(tmp_path / "out") == known
    done = log.run(tmp_path / "out")
    assert done["kept"] == 0 and job.exit_code(done) == 0, "kept days are final"
    assert counts(tmp_path / "out") == known
    log.rows = []
    assert log.run(tmp_path / "out")["days"] == 0
    assert counts(tmp_path / "out") == known


def test_another_lookback_is_no_loss(log, tmp_path):
    log.rows += attempt(1, "a") + attempt(30, "b") + attempt(60, "c")
    assert log.run(tmp_path / "out", lookback_days=1)["open_from"] == "2026-03-02"
    for days in (0, 2):
        log.rows += attempt(61, f"more {days}")
        assert log.run(tmp_path / "out", lookback_days=days)["kept"] == 0
    assert counts(tmp_path / "out")["2026-03-03"] == 3


def test_an_attempt_that_ends_again_moves_to_its_new_day(log, tmp_path):
    log.rows += attempt(1, "a") + attempt(25, "b")
    log.run(tmp_path / "out")
    log.rows += [event(26, "SUCCEEDED", "a", runtime=1.0)]
    log.run(tmp_path / "out")
    assert counts(tmp_path / "out") == {"2026-03-02": 2}


def test_a_real_log_is_read(spark, make_store, tmp_path):
    from tests.spark.test_report import told

    store = make_store()
    store.put_many(
        [
            told("SENT", "shop.pay", "t"),
            told("STARTED", "shop.pay", "t"),
            told("SUCCEEDED", "shop.pay", "t", runtime=1.5),
        ]
    )
    for _ in range(2):
        with no_umask():
            done = job.aggregate(spark, str(store.path), tmp_path / "out")
        assert (done["days"], done["late"]) == (1, 0)
        check_access(tmp_path / "out")
    (row,) = table(tmp_path / "out")
    assert (row["name"], row["count"], row["runtime_p50"]) == ("shop.pay", 1, 1.5)


def test_bad_input_is_refused_before_anything_is_written(make_store, tmp_path, spark):
    store, other = make_store(), make_store("other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    good = tmp_path / "good"
    good.mkdir()
    state = {"stores": [str(store.path)], "open_from": "2026-03-01", "oldest_ms": 1}
    (good / "state.json").write_text(json.dumps(state))
    for stores, out, options, match in (
        (store.path, tmp_path / "full", {}, "not a folder of daily numbers"),
        (other.path, good, {}, "name these stores"),
        (store.path, store.path / "x", {}, "must not con"),
        (tmp_path / "nope", tmp_path / "x", {}, "no store"),
        (store.path, good, {"watermark_h": -1}, "watermark_h"),
        (store.path, good, {"lookback_days": 1.5}, "lookback_days"),
    ):
        with pytest.raises(cystore.StoreError, match=match):
            job.aggregate(spark, str(stores), out, **options)
    (good / "state.json").write_text("{}")
    with pytest.raises(cystore.CorruptRecordError, match="remove the folder"):
        job.aggregate(spark, str(store.path), good)
    shutil.rmtree(good)
    assert not (tmp_path / "x").exists()
