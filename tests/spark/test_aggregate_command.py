"""Goal: `python -m cystore.spark aggregate` keeps daily numbers as users run it, and kills change nothing. Method:
the command in processes of its own, on the log of real tasks and on stores whose events have old times; SIGKILL at
several moments."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as pds
import pytest

from cystore.celery.base import events as layout
from cystore.spark.__main__ import main
from cystore.spark.jobs import aggregate as job
from tests.oracle.record import CYSTORE_MAGIC, Record
from tests.spark.conftest import ROOT
from tests.spark.test_processes import command, kill, program
from tests.support.property import stores
from tests.support.recovery_stores import FILE_BYTES, Written, write
from tests.support.spark import programs

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

START_MS = 1_772_323_200_000  # 2026-03-01
HOUR_MS = 3_600_000
PATIENCE_S = 600.0  # each command starts a JVM: 20 s with two free cores
ONE_CORE = ("--master", "local[1]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
TASKS = """
import sys
from celery import Celery
app = Celery("shop", broker="memory://", backend="cystore://" + sys.argv[1])

@app.task(name="shop.pay", shared=False)
def pay(amount):
    return 1 / amount

for amount in (1, 2, 0, 4):
    pay.apply((amount,))
pay.delay(5)  # sent, and never run
"""


def run(*arguments: object, code: int = 0) -> dict[str, Any]:
    """The command, as a user runs it; its summary."""
    given = command("aggregate", *map(str, arguments), "--json", module="cystore.spark")
    done = subprocess.run(given, cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, done.stderr
    return {"error": done.stderr} if code == 2 else json.loads(done.stdout)


def record(number: int, at_h: float, event: str, task_id: str) -> Record:
    """An event of the lifecycle log with a time of its own."""
    properties = {"task": "shop.pay", "KEYS": " ".join(layout.keys_of(task_id)), "TAGS": event}
    return Record(
        topic=layout.EVENTS,
        body=layout.body_of({"runtime": 1.5} if event == layout.SUCCEEDED else {}),
        magic=CYSTORE_MAGIC,
        queue_offset=number,
        store_timestamp_ms=START_MS + int(at_h * HOUR_MS),
        raw_properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode(),
    )


def lay(path: Path, days: range, tasks: int = 8) -> list[str]:
    """Makes the store anew: so many tasks on each of these days, of which the last ends on the next day. Returns its
    settings as options of the command."""
    hours = [
        (24 * day + 3 * task + step, event, f"{day}-{task}")
        for day in range(days.stop)
        for task in range(tasks)
        for step, event in ((1, layout.SENT), (2, layout.STARTED), (3.5, layout.SUCCEEDED))
    ]
    records = [record(number, *one) for number, one in enumerate(sorted(hours))]
    gone = 3 * tasks * days.start
    shutil.rmtree(path, ignore_errors=True)
    written: Written = write(path, records[gone:], durable=-1, clean=True, begin=FILE_BYTES * days.start)
    settings = {"services": "none", **stores.config(written.log)}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def content(out: Path) -> tuple[list[dict[str, Any]], bytes]:
    """The whole table, and the state."""
    rows = pds.dataset(out / "daily", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: row["date"]), (out / "state.json").read_bytes()


def counts(out: Path) -> list[int]:
    return [row["count"] for row in content(out)[0]]


@pytest.mark.slow
def test_the_log_of_real_tasks(tmp_path):
    store, out = tmp_path / "store", tmp_path / "daily"
    subprocess.run([sys.executable, "-c", TASKS, str(store)], cwd=ROOT, check=True, capture_output=True)
    done = run(store, "--out", out, *ONE_CORE, "--conf", "spark.ui.enabled=false")
    assert (done["kept"], done["late"], done["out"]) == (0, 0, str(out))
    (rows, _) = content(out)
    assert {row["name"] for row in rows} == {"shop.pay"}
    assert sum(row["count"] for row in rows) == 4 and sum(row["failed"] for row in rows) == 1


@pytest.mark.slow
def test_exit_codes_and_settings(tmp_path):
    store, out, file = tmp_path / "store", tmp_path / "out", tmp_path / "store.toml"
    settings = lay(store, range(3))
    file.write_text('services = "none"')
    given = [*settings[2:], "--config", file, *ONE_CORE]
    done = run(store, "--out", out, *given)
    assert (done["days"], done["open_from"]) == (4, "2026-03-03")
    assert counts(out) == [7, 8, 8, 1]
    lay(store, range(2, 4))
    done = run(store, "--out", out, *given, "--lookback-days", 3, code=1)
    assert done["kept"] == 1 and counts(out) == [7, 8, 8, 8, 1], "the file of the third day is kept"
    for wrong in ([tmp_path / "nope", "--out", out], [store, "--out", store], [store, "--out", tmp_path]):
        assert run(*wrong, code=2)["error"].startswith("cystore.spark aggregate: error: ")


def test_what_is_wrong_is_said_before_spark_starts(tmp_path, capsys):
    settings = lay(tmp_path / "store", range(1))
    for more, why in (
        (["--watermark-h", "-1"], "watermark_h must be from 0"),
        (["--watermark-h", "nan"], "watermark_h must be from 0"),
        (["--lookback-days", "-1"], "lookback_days must be a whole number"),
        (["--set", "nope=1"], "nope"),
    ):
        given = ["aggregate", str(tmp_path / "store"), "--out", str(tmp_path / "out"), *settings]
        assert main([*given, *more, "--master", "none://nowhere"]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as ended:
        main(["aggregate", "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and "example:\n  python -m cystore.spark aggregate /var" in told


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < give_up
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the command left with {process.wait(0.01)}")


@pytest.mark.slow
def test_a_first_run_that_is_killed_is_repeated(tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    settings = [*lay(store, range(3)), *ONE_CORE]
    with program("aggregate", str(store), "--out", str(out), *settings, module="cystore.spark") as process:
        wait_for(out.exists, process)
        kill(process)
    assert not (out / "state.json").exists()
    assert run(store, "--out", out, *settings)["days"] == 4
    assert counts(out) == [7, 8, 8, 1]


@pytest.mark.slow
def test_a_run_that_is_killed_is_repeated(tmp_path):
    """Killed behind the first of four days."""
    store, out, calm = tmp_path / "store", tmp_path / "out", tmp_path / "calm"
    settings = [*lay(store, range(3)), *ONE_CORE]
    run(store, "--out", out, *settings)
    shutil.copytree(out, calm)
    before = content(out)
    lay(store, range(5))
    with program("aggregate", "3", str(out), str(store), *settings) as process:
        assert process.wait(PATIENCE_S) == -9
    assert content(out)[1] == before[1], "the state is written last"
    for folder in (out, calm):
        assert run(store, "--out", folder, *settings)["days"] == 4
    assert counts(calm) == [7, 8, 8, 8, 8, 1] and content(out) == content(calm)


@pytest.mark.parametrize("moments", [(0, 5, 10, 11), pytest.param(range(12), marks=pytest.mark.slow)])
def test_kills_at_several_moments_change_nothing(make_store, tmp_path, monkeypatch, moments):
    """Processes that are killed before and after the names of files, without Spark. Each continues where the last one
    was killed."""
    store, out, calm = str(make_store().path), tmp_path / "out", tmp_path / "calm"
    made_up(monkeypatch, 3)
    assert job.aggregate(None, store, out)["days"] == 3
    shutil.copytree(out, calm)
    before = content(out)
    made_up(monkeypatch, 6)
    assert job.aggregate(None, store, calm)["days"] == 5, "two open days, and three new ones"
    for steps in moments:
        assert content(out)[1] == before[1], "the state is written last"
        with program("daily", str(steps), str(out), store, "6") as process:
            assert process.wait(PATIENCE_S) == -9
    assert content(out) == content(calm), "the last one was killed behind the state"
    assert job.aggregate(None, store, out)["days"] == 2, "the open days"
    assert content(out) == content(calm)
    assert len(counts(out)) == 6 and not list((out / "tmp").iterdir())


def made_up(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """In this process, until the test ends."""
    for name in ("_events", "task_runs", "daily", "_times"):
        monkeypatch.setattr(job, name, getattr(job, name))
    programs.made_up(job, days)
