"""Goal: a starting timestamp behind the last message of a partition is an error that names it, or that partition
begins with what comes next, as in Spark's Kafka source. Method: plans of batches and first offsets of streams,
without a JVM; one query through Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import cystore
from tests.spark.conftest import fill
from tests.support.small_stores import SETTINGS, open_small

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from cystore.errors import OffsetError
from cystore.spark.data_source import CystoreDataSource

STRATEGY = "startingOffsetsByTimestampStrategy"
LATE_MS = 10**15
STORE_OPTIONS = {f"cystore.{name}": str(value) for name, value in SETTINGS.items()}


def batch_of(path: Any, **options: str) -> list[int]:
    source = CystoreDataSource({"path": str(path), **STORE_OPTIONS, **options})
    reader = source.reader(source.schema())
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    return sorted(int(dict(row["properties"])["number"]) for batch in batches for row in batch.to_pylist())


def stream_of(path: Any, **options: str) -> list[int]:
    """Its first batch."""
    source = CystoreDataSource({"path": str(path), **STORE_OPTIONS, **options})
    reader = source.streamReader(source.schema())
    try:
        start = json.loads(json.dumps(reader.initialOffset()))
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        batches = [batch for one in parts for batch in reader.read(one)]
    finally:
        reader.stop()
    return sorted(int(dict(row["properties"])["number"]) for batch in batches for row in batch.to_pylist())


READS = pytest.mark.parametrize("read", [batch_of, stream_of])


def per_queue(at_ms: int, **others: int) -> str:
    times = {str(queue_id): at_ms for queue_id in range(3)}
    return json.dumps({"topic-1": {**times, **{name[1:]: other for name, other in others.items()}}})


def later(store: cystore.MessageStore) -> int:
    """A time behind all messages, which has come: what is put from now on is stored at or after it."""
    at_ms = max(message.store_timestamp_ms for message in store.scan()) + 1
    while time.time_ns() // 1_000_000 < at_ms:
        pass  # a millisecond at most
    return at_ms


def put_more(store: cystore.MessageStore, topic: str, queue_id: int) -> None:
    store.put(topic, b"later", queue_id=queue_id, properties={"number": "1000"})
    store.flush()


@READS
@pytest.mark.parametrize(
    ("name", "value"),
    [("startingTimestamp", str(LATE_MS)), ("startingOffsetsByTimestamp", per_queue(1, _2=LATE_MS))],
)
def test_a_partition_without_a_message_from_its_timestamp_on_is_an_error(
    make_store, read: Callable[..., list[int]], name, value
):
    store = make_store(count=60)
    for strategy in ({}, {STRATEGY: "Error"}):
        with pytest.raises(OffsetError) as error:
            read(store.path, topic="topic-1", **{name: value}, **strategy)
        queue = "topic-1/0 (and 2 more" if name == "startingTimestamp" else "topic-1/2 was"
        for part in (queue, str(LATE_MS), f"as {name} asks", STRATEGY, "latest", str(store.path)):
            assert part in str(error.value)


@READS
def test_latest_reads_the_partitions_that_have_messages(make_store, read: Callable[..., list[int]]):
    store = make_store(count=60)
    assert read(store.path, startingTimestamp=str(LATE_MS), **{STRATEGY: "latest"}) == []
    some = {"topic": "topic-1", "startingOffsetsByTimestamp": per_queue(1, _2=LATE_MS)}
    expected = [int(m.properties["number"]) for m in store.scan() if m.topic == "topic-1" and m.queue_id != 2]
    assert read(store.path, **some, **{STRATEGY: "latest"}) == expected


@READS
@pytest.mark.parametrize("dispatched", [True, False])
def test_one_idle_partition_is_enough(make_store, read: Callable[..., list[int]], dispatched):
    """And it is none any more with the first message, whether that is in its queue already or in the log only."""
    store = make_store(count=60)
    store.dispatch()
    at_ms = str(later(store))
    for queue_id in (0, 1):
        put_more(store, "topic-1", queue_id)
    if dispatched:
        store.dispatch()
    with pytest.raises(OffsetError, match=f"no message of topic-1/2 was stored at or after {at_ms}"):
        read(store.path, topic="topic-1", startingTimestamp=at_ms)
    put_more(store, "topic-1", 2)
    if dispatched:
        store.dispatch()
    assert read(store.path, topic="topic-1", startingTimestamp=at_ms) == [1000] * 3


@READS
def test_a_store_that_nobody_has_open_is_asked_too(tmp_path, read: Callable[..., list[int]]):
    with open_small(tmp_path / "s") as store:
        fill(store, 60)
        last = {m.queue_id: m.store_timestamp_ms for m in store.scan() if m.topic == "topic-1"}
    at_ms = min(last.values())
    assert read(tmp_path / "s", topic="topic-1", startingTimestamp=str(at_ms))
    with pytest.raises(OffsetError, match="no message of topic-1/0"):
        read(tmp_path / "s", topic="topic-1", startingTimestamp=str(LATE_MS))


@READS
def test_a_partition_that_is_empty_or_unknown_has_no_message(make_store, read: Callable[..., list[int]]):
    store = make_store(count=60)
    unknown = {"assign": '{"topic-1":[0,9]}', "startingTimestamp": "1"}
    with pytest.raises(OffsetError, match="no message of topic-1/9 was stored at or after 1,"):
        read(store.path, **unknown)
    assert len(read(store.path, **unknown, **{STRATEGY: "latest"})) == 10
    fill(store, 900, 60)
    store.dispatch()
    put_more(store, "cleaned", 0)
    fill(store, 300, 960)
    store.flush()
    store.dispatch()
    store.close()
    with open_small(store.path) as again:
        again.configure(file_reserved_time_h=0)
        assert again.clean().segments
        assert again.snapshot().last_message("cleaned", 0, again.snapshot().end) is None
        again.flush()
        with pytest.raises(OffsetError, match="no message of cleaned/0 was stored"):
            read(again.path, startingTimestamp="1")


def test_an_empty_store_has_no_partition_to_ask(make_store):
    store = make_store()
    assert batch_of(store.path, startingTimestamp=str(LATE_MS)) == []
    assert stream_of(store.path, startingTimestamp=str(LATE_MS)) == []


def test_a_message_that_is_archived_counts(make_store, spark, tmp_path):
    from cystore.spark.jobs.archive import archive

    store = make_store(count=0)
    put_more(store, "old", 0)
    fill(store, 600)
    store.flush()
    store.close()
    small = SETTINGS
    with cystore.open(store.path, **small) as again:
        again.configure(file_reserved_time_h=0)
        archive(spark, str(store.path), str(tmp_path / "archive"), settings=small, all_sealed=True)
        assert again.clean().segments
        with pytest.raises(OffsetError, match="no message of old/0"):
            batch_of(store.path, startingTimestamp="1", topic="old")
        assert batch_of(store.path, startingTimestamp="1", topic="old", includeArchive="true") == [1000]
        with pytest.raises(OffsetError, match="no message of old/0"):
            batch_of(store.path, startingTimestamp=str(LATE_MS), topic="old", includeArchive="true")


def test_spark_tells_the_error(make_store, spark):
    from pyspark.errors import PySparkException

    store = make_store(count=60)
    frame = spark.read.format("cystore").option("startingTimestamp", LATE_MS).load(str(store.path))
    with pytest.raises(PySparkException, match=f"let {STRATEGY} be latest"):
        frame.collect()
