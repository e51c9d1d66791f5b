"""Goal: the archive job lets a log be cleaned and includeArchive gives the same table before and after, or says what
is lost. Method: the job in one local session on small stores, of which parts are archived and cleaned; programs of
their own, one of which is killed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.services.retention.archive_mark import content_of, newest_manifest
from tests.spark.conftest import ROOT, fill
from tests.spark.test_batch import PUSH_DOWN, numbers, read, refused
from tests.spark.test_processes import kill
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

EXPIRED = {"file_reserved_time_h": 0}


def job(spark: Any, *arguments: Any) -> dict[str, Any]:
    """`python -m cystore.spark archive ...` in the session that is there."""
    from cystore.spark.jobs import archive

    parser = argparse.ArgumentParser()
    archive.add_arguments(parser)
    given = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    return archive.run(parser.parse_args([*map(str, arguments), *given]), spark)


@pytest.fixture
def half(spark: Any, tmp_path: Path) -> Any:
    """A store of which the first half is archived and cleaned away, and all of its messages."""
    with open_small(tmp_path / "store", **EXPIRED) as store:
        fill(store, 200)
        store.flush()
        messages = list(store.scan())
        done = job(spark, store.path, tmp_path / "archive", "--all")
        assert done["archived_up_to"] == store.archived().up_to >= 2 * LOG_BYTES
        fill(store, 200, 200)
        store.flush()
        messages += list(store.scan(messages[-1].physical_offset))[1:]
        assert store.clean().segments == done["segments"]
        yield store, messages


def test_the_table_is_the_same_before_and_after_archiving_and_cleaning(spark, tmp_path):
    with open_small(tmp_path / "store", **EXPIRED) as store:
        fill(store, 300)
        store.flush()

        def table() -> list[Any]:
            return read(spark, store, includeArchive="true").sort("physical_offset").collect()

        whole = table()
        assert len(whole) == 300
        first = job(spark, store.path, tmp_path / "archive", "--all", "--step-bytes", 1)
        assert first["rows"] > 100 and first["files"] and first["parquet_bytes"]
        assert table() == whole, "archived, and the log has all of it still"
        assert read(spark, store, includeArchive="true", key="key-5").count() == 1
        assert store.clean(max_segments=1).segments == 1
        assert table() == whole, "archived, and cleaned in part"
        assert store.clean().segments == first["segments"] - 1
        assert table() == whole
        assert read(spark, store).count() == 300 - first["rows"]
        assert len(content_of(store.archived()).manifests) == first["segments"]
        plain = spark.read.parquet(str(tmp_path / "archive" / "data")).drop("date")
        wanted = (
            spark.createDataFrame(whole).filter(f"physical_offset < {first['archived_up_to']}").drop("store")
        )
        assert plain.count() == wanted.count() == first["rows"]
        names = wanted.columns
        assert (
            plain.select(*names).sort("physical_offset").collect() == wanted.sort("physical_offset").collect()
        )


def test_options_choose_messages_of_archive_and_log(spark, half):
    store, messages = half
    border = store.archived().up_to
    middle = max(m.store_timestamp_ms for m in messages if m.physical_offset < border)
    starts = {"topic-0": {"0": 0, "1": -2, "2": 5}, "topic-1": {"0": 40, "1": 60, "2": 0}}
    ends = {"topic-0": {"0": 50, "1": -1, "2": 6}, "topic-1": {"0": -1, "1": 61, "2": 1}}

    def between(m: cystore.Message) -> bool:
        low, high = starts[m.topic][str(m.queue_id)], ends[m.topic][str(m.queue_id)]
        return m.queue_offset >= max(low, 0) and (high < 0 or m.queue_offset < high)

    cases: list[tuple[dict[str, str], Callable[[cystore.Message], bool]]] = [
        ({}, lambda m: True),
        ({"topic": "topic-1"}, lambda m: m.topic == "topic-1"),
        ({"subscribePattern": ".*-0"}, lambda m: m.topic == "topic-0"),
        ({"assign": '{"topic-0":[1,2]}'}, lambda m: m.topic == "topic-0" and m.queue_id in (1, 2)),
        ({"key": "key-33,key-350"}, lambda m: m.keys[0] in ("key-33", "key-350")),
        ({"key": "all", "topic": "topic-0"}, lambda m: m.topic == "topic-0"),
        ({"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}, between),
        ({"startingTimestamp": str(middle)}, lambda m: m.store_timestamp_ms >= middle),
        ({"endingTimestamp": str(middle)}, lambda m: m.store_timestamp_ms < middle),
        ({"minPartitions": "6"}, lambda m: True),
        ({"checkChecksum": "false", "includeTransactions": "true"}, lambda m: True),
    ]
    for options, keeps in cases:
        frame = read(spark, store, includeArchive="true", **options)
        assert numbers(frame) == [int(m.properties["number"]) for m in messages if keeps(m)], options
    parts = read(spark, store, includeArchive="true", minPartitions="6").rdd.getNumPartitions()
    assert parts >= 6


@pytest.mark.slow
def test_filters_are_pushed_down_to_the_archive(spark, half):
    store, messages = half
    border = store.archived().up_to
    place = messages[20].physical_offset
    spark.conf.set(PUSH_DOWN, "true")
    try:
        for condition, keeps in {
            "key = 'key-7'": lambda m: m.keys[0] == "key-7",
            "tags = 'odd' and partition = 1": lambda m: m.tags == "odd" and m.queue_id == 1,
            f"physical_offset < {border}": lambda m: m.physical_offset < border,
            f"physical_offset > {place} and offset < 30": lambda m: (
                m.physical_offset > place and m.queue_offset < 30
            ),
            "timestamp > timestamp'2120-01-01'": lambda m: False,
        }.items():
            frame = read(spark, store, includeArchive="true", filterPushdown="true").filter(condition)
            assert numbers(frame) == [int(m.properties["number"]) for m in messages if keeps(m)], condition
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_the_border_is_fixed_when_the_query_is_planned(spark, half, tmp_path):
    store, messages = half
    frame = read(spark, store, includeArchive="true")
    frame.rdd.getNumPartitions()  # plans
    assert job(spark, store.path, tmp_path / "archive", "--all")["segments"] > 0
    assert numbers(frame) == [int(m.properties["number"]) for m in messages]
    fresh = read(spark, store, includeArchive="true")
    assert numbers(fresh) == [int(m.properties["number"]) for m in messages]
    assert store.clean().segments > 0
    assert numbers(read(spark, store, includeArchive="true")) == [
        int(m.properties["number"]) for m in messages
    ]


def test_a_damaged_record_refuses_the_job_on_executors_too(spark, tmp_path):
    with open_small(tmp_path / "store", **EXPIRED) as store:
        fill(store, 200)
        store.flush()
        bad = list(store.scan())[50].physical_offset
        path = store.path / "commitlog" / f"{bad // LOG_BYTES * LOG_BYTES:020d}"
        with path.open("r+b") as file:
            file.seek(bad % LOG_BYTES + 150)
            file.write(b"?!")
        with pytest.raises(cystore.CorruptRecordError, match="is damaged up to") as error:
            job(spark, store.path, tmp_path / "archive", "--all")
        assert (error.value.path, error.value.offset) == (str(path), bad)
        assert store.archived().up_to == 0 and store.clean().segments == 0
        expected = numbers(read(spark, store, onCorruption="skip"))
        assert job(spark, store.path, tmp_path / "archive", "--all", "--skip-damage")["damaged"] == 1
        assert store.clean().segments > 0
        told = refused(read(spark, store, includeArchive="true"))
        assert "was damaged up to" in told and f"[offset {bad}]" in told
        assert numbers(read(spark, store, includeArchive="true", onCorruption="skip")) == expected
        frame = read(spark, store, includeArchive="true", onCorruption="column").filter("corrupt is not null")
        assert [row.physical_offset for row in frame.collect()] == [bad]


@pytest.mark.slow
def test_what_is_in_neither_is_data_loss(spark, half):
    store, messages = half
    one = content_of(store.archived()).manifests[0].files[0]
    path = Path(store.archived().folder) / one.path
    path.rename(path.with_suffix(".away"))
    assert "does not exist" in refused(read(spark, store, includeArchive="true"))
    left = read(spark, store, includeArchive="true", failOnDataLoss="false").count()
    assert left == len(messages) - one.rows
    path.with_suffix(".away").rename(path)
    store.archive_mark.end()
    before = store.clean().min_physical_offset
    assert read(spark, store, includeArchive="true").count() == sum(
        m.physical_offset >= before for m in messages
    )
    store.archive_mark.begin("other", str(path.parent))
    store.archive_mark.restore(type(store.archived())("other", str(path.parent), before - LOG_BYTES))
    assert "lost to this read" in refused(read(spark, store, includeArchive="true"))


def test_streams_do_not_take_the_archive(spark, half):
    store, _ = half
    frame = spark.readStream.format("cystore").option("includeArchive", "true")
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="includeArchive is for batches only"):
        frame.load(str(store.path)).writeStream.format("noop").start().processAllAvailable()


def arguments(store: Path, archive: Path, *more: str) -> list[str]:
    given = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    return [
        sys.executable,
        "-m",
        "cystore.spark",
        "archive",
        str(store),
        str(archive),
        "--all",
        *given,
        *more,
    ]


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_missing_and_nothing_twice(spark_folder, tmp_path):
    """Driver, JVM and Python workers are killed when the first manifest of many is there; another run does the rest."""
    settings = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)}
    with open_small(tmp_path / "store", **EXPIRED) as store:
        fill(store, 600)
        store.flush()
        command = arguments(store.path, tmp_path / "archive", "--step-bytes", "1")
        driver = subprocess.Popen(
            command, cwd=ROOT, env=settings, text=True, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            while driver.poll() is None and not list(tmp_path.glob("archive/manifests/*.json")):
                pass
            assert driver.poll() is None
        finally:
            kill(driver)
        named = newest_manifest(tmp_path / "archive", str(store.path))
        assert named is not None and store.archived().up_to in (named.begin, named.end)
        done = subprocess.run(
            arguments(store.path, tmp_path / "archive", "--json"),
            cwd=ROOT, env=settings, text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["begin"] == named.end  # also where the kill came before the store knew
        from tests.unit.columns.test_archiver import archive_rows, check_folder, log_rows

        assert archive_rows(store).equals(log_rows(store, told["archived_up_to"]))
        check_folder(tmp_path / "archive", store)


@pytest.mark.slow
def test_the_command_names_what_is_wrong(spark_folder, tmp_path):
    path = tmp_path / "folder" / "store"
    cystore.open(path).close()
    done = subprocess.run(arguments(path, tmp_path), cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 2 and "not contain each other" in done.stderr
