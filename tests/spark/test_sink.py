"""Goal: what a DataFrame or a stream writes is what a read gives back, each row once. Method: the sink in the local
Spark session; a driver killed while it streams into a store, and its query started again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.spark.conftest import fill
from tests.spark.test_batch import read
from tests.spark.test_processes import answer, kill, program
from tests.support.small_stores import SETTINGS
from tests.support.spark.programs import SMALL

SAME = ("key", "value", "topic", "partition", "offset", "tags", "keys", "properties", "sys_flag")


def append(frame: Any, store: Path, **options: Any) -> None:
    frame.write.format("cystore").mode("append").options(**SMALL, **options).save(str(store))


def refused(work: Any) -> str:
    """Spark's text for a failing write."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as error:
        work()
    return str(error.value)


def staged(folder: Path) -> list[Path]:
    return [*folder.rglob("*.rows"), *folder.rglob("batch-*")]


def test_what_was_read_can_be_written_as_it_is(spark, make_store, tmp_path):
    """Every column, into another store; the copy gives the same rows."""
    source, copy = make_store(count=200), tmp_path / "copy"
    with cystore.open(source.path, **SETTINGS) as opened:
        opened.put("topic-0", b"bare", queue_id=7)
        opened.put("topic-0", b"", keys=("żółć",), properties={"a": "ü"}, unique_key="id-1")
    append(read(spark, source).coalesce(1), copy)
    rows = [
        read(spark, store).select(*SAME).orderBy("topic", "partition", "offset").collect()
        for store in (source, copy)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 202
    assert not staged(tmp_path)


def test_rows_as_kafkas_sink_takes_them(spark, tmp_path):
    store = tmp_path / "store"
    frame = spark.range(100).selectExpr(
        "cast(id as string) as value",
        "concat('k', id) as key",
        "cast(id % 3 as int) as partition",
        "'no' as topic",
    )
    append(frame.repartition(3), store, topic="yes")
    append(frame.limit(0), store, topic="yes")
    rows = read(spark, store).collect()
    assert sorted(int(row.value) for row in rows) == list(range(100))
    assert all(row.topic == "yes" and row.partition == int(row.value) % 3 for row in rows)
    assert all(row.keys == [f"k{int(row.value)}"] and row.properties == {"KEYS": row.key} for row in rows)
    with cystore.open(store, **SETTINGS) as opened:
        assert bytes(opened.query("yes", "k42")[0].body) == b"42"


def test_a_thread_writes_when_the_session_is_its_own(spark, tmp_path):
    """docs/spark.md says what a thread does first. Without that, Spark finds no Python data source from there."""
    frame = spark.createDataFrame([("T", b"x")], "topic STRING, value BINARY")

    def write(number: int) -> None:
        spark.createDataFrame([], "a INT")
        frame.write.format("cystore").mode("append").save(str(tmp_path / f"store{number}"))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, range(2)))
    for number in range(2):
        with cystore.open(tmp_path / f"store{number}", read_only=True) as store:
            assert [bytes(message.body) for message in store.scan()] == [b"x"]


def test_a_write_that_fails_says_why_and_leaves_nothing(spark, tmp_path):
    store = tmp_path / "store"
    frame = spark.createDataFrame([("T", b"1"), ("T", None)], "topic STRING, value BINARY").coalesce(1)
    assert "row 1 of task 0: column value is null" in refused(lambda: append(frame, store))
    writer = frame.write.format("cystore")
    assert "a log is append-only" in refused(lambda: writer.mode("overwrite").save(str(store)))
    assert "txnVersion go together" in refused(lambda: append(frame, store, txnAppId="a"))
    assert "there is no column value" in refused(lambda: append(frame.select("topic"), store))
    assert not store.exists()
    assert not staged(tmp_path)


@pytest.mark.slow
def test_an_applications_version_is_written_once(spark, tmp_path):
    store, staging = tmp_path / "store", tmp_path / "elsewhere"
    frame = spark.range(20).selectExpr("'T' as topic", "cast(id as string) as value")
    for _ in range(2):
        append(frame, store, txnAppId="nightly", txnVersion=3, stagingPath=str(staging))
    assert read(spark, store).count() == 20
    assert staging.is_dir()
    assert not staged(tmp_path)


def stream(spark: Any, source: Path, store: Path, checkpoint: Path, **options: Any) -> None:
    frame = spark.readStream.format("cystore").options(startingOffsets="earliest", maxOffsetsPerTrigger="100")
    written = frame.load(str(source)).writeStream.format("cystore").options(**SMALL, **options)
    query = written.option("checkpointLocation", str(checkpoint)).option("path", str(store))
    assert query.trigger(availableNow=True).start().awaitTermination(120)


def numbers(store: Path) -> list[int]:
    with cystore.open(store, **SETTINGS) as opened:
        return [int(message.properties["number"]) for message in opened.scan()]


def test_a_stream_from_store_to_store_and_its_batch_that_spark_repeats(spark, make_store, tmp_path):
    source, copy, checkpoint = make_store(count=150), tmp_path / "copy", tmp_path / "checkpoint"
    stream(spark, source.path, copy, checkpoint)
    assert sorted(numbers(copy)) == list(range(150))
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in last.parent.glob(f"*{last.name}*"):
        path.unlink()  # as if the driver had been killed behind the sink's commit
    fill(source, 30, 150)
    source.flush()
    stream(spark, source.path, copy, checkpoint)
    assert last.exists(), "Spark has repeated the batch"
    assert sorted(numbers(copy)) == list(range(180))
    assert not staged(tmp_path)


@pytest.mark.slow
def test_a_stream_with_another_checkpoint_is_not_the_same_sink(spark, make_store, tmp_path):
    source, copy = make_store(count=20), tmp_path / "copy"
    stream(spark, source.path, copy, tmp_path / "one", sinkId="copy")
    told = refused(lambda: stream(spark, source.path, copy, tmp_path / "two", sinkId="copy"))
    assert "belongs to query" in told
    assert sorted(numbers(copy)) == list(range(20))


@pytest.mark.slow
def test_a_killed_driver_writes_every_message_once(spark_folder: Path, make_store, tmp_path: Path):
    """SIGKILL of driver, JVM and workers in the middle of batches; the last run continues to the end."""
    source, folder, copy = make_store(count=2000), tmp_path / "work", tmp_path / "copy"
    folder.mkdir()
    for kill_after in (1, 2, 1):
        with program("copy", str(folder), str(source.path), str(copy), "no") as driver:
            for _ in range(kill_after):
                answer(driver)
            kill(driver)
    with program("copy", str(folder), str(source.path), str(copy), "yes") as driver:
        output, _ = driver.communicate(timeout=300)
        assert driver.returncode == 0, output
    found = numbers(copy)
    assert sorted(found) == list(range(2000))
    for queue in range(6):
        in_queue = [number for number in found if number % 6 == queue]
        assert in_queue == sorted(in_queue)
    note = json.loads(next((copy / "config" / "sparkSinks").glob("*.json")).read_text())
    assert note["begun"] is None
    assert not staged(tmp_path)
