"""Goal: on executors in processes of their own every job does what it does in one process, and an executor that is
killed costs no row and writes none twice. Method: Spark's local cluster; SIGKILL of an executor from inside of its
own task, behind its first rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.spark.conftest import fill
from tests.spark.test_processes import answer, program
from tests.spark.test_rebuild import queue_bytes
from tests.spark.test_report import told
from tests.spark.test_sink import numbers, staged
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

pytestmark = pytest.mark.slow
COUNT = 900


@contextmanager
def cluster(*arguments: str) -> Iterator[Any]:
    with program(*arguments, module="tests.support.spark.clusters") as driver:
        yield driver


@pytest.fixture
def source(make_store: Callable[..., Any]) -> Path:
    store = make_store("source", COUNT)
    store.dispatch()
    return Path(store.path)


def test_a_killed_executor_costs_a_read_no_row(spark_folder, source, tmp_path):
    with cluster("read", str(tmp_path), str(source)) as driver:
        told = answer(driver)
    assert int(told["killed"]) > 1
    assert told["numbers"] == list(range(COUNT))


@pytest.mark.parametrize("named", ["yes", "no"])
def test_a_killed_executor_makes_a_write_append_no_row_twice(spark_folder, source, tmp_path, named):
    copy = tmp_path / "copy"
    with cluster("write", str(tmp_path), str(source), str(copy), named) as driver:
        assert int(answer(driver)["killed"]) > 1
    assert sorted(numbers(copy)) == list(range(COUNT))
    assert not staged(tmp_path)


def test_a_killed_executor_makes_a_stream_append_no_row_twice(spark_folder, source, tmp_path):
    copy = tmp_path / "copy"
    with cluster("stream", str(tmp_path), str(source), str(copy)) as driver:
        assert int(answer(driver)["killed"]) > 1
    assert sorted(numbers(copy)) == list(range(COUNT))
    assert not staged(tmp_path)


def test_every_job_on_executors_of_their_own(spark_folder, tmp_path):
    for name in ("damaged", "undispatched", "archived"):
        with open_small(tmp_path / name) as store:
            fill(store, 300)
            store.dispatch()
    log = tmp_path / "damaged" / "commitlog" / f"{LOG_BYTES:020d}"
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    before = queue_bytes(tmp_path / "undispatched")
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "undispatched" / name)
    with open_small(tmp_path / "events") as store:
        store.put_many([told("SUCCEEDED", "shop.pay", f"t{n}", runtime=1.0) for n in range(7)])
        store.put_many([told("FAILED", "shop.pay", "t7", runtime=2.0, exception="ValueError")])
    folder = tmp_path / "work"
    folder.mkdir()
    names = ("damaged", "undispatched", "archived", "events")
    found: dict[str, Any] = {}
    with cluster("jobs", str(folder), *(str(tmp_path / name) for name in names)) as driver:
        while len(found) < 6:
            found.update(answer(driver))
    assert (found["scrub"]["records"], found["scrub"]["damaged_record"]) == (299, 1)
    assert found["scrub"]["tasks"] > 2
    assert (found["rebuild"]["entries"], found["rebuild"]["new_holes"]) == (300, 0)
    assert queue_bytes(tmp_path / "undispatched") == before
    with cystore.open(tmp_path / "undispatched", **SETTINGS) as store:
        assert [m.keys[0] for m in store.query("topic-1", "key-77")] == ["key-77"]
    assert found["archive"]["rows"] > 100
    assert found["both"] == list(range(300))
    assert found["report"]["runs"] == 8 and found["live"]["batches"] >= 1
    assert (folder / "report" / "report.html").exists()
