"""Goal: executors that do not have a store's folder read its sealed segments by URL, in the same table, with the same
options. Method: a folder's URL in the local session; a copy in an object store, read by a local cluster after the
folder is gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import fill
from tests.spark.test_batch import numbers, read, refused
from tests.spark.test_processes import answer, program
from tests.support.small_stores import LOG_BYTES

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

SEALED = {"sealedSegments": "true"}


def sealed_numbers(store: Any) -> list[int]:
    """The numbers of the messages that are not in the segment which is written to."""
    end = store.snapshot().end // LOG_BYTES * LOG_BYTES
    return [int(m.properties["number"]) for m in store.scan() if m.physical_offset < end]


def test_a_folder_by_url_gives_what_is_sealed(spark, make_store):
    store = make_store(count=400)
    store.dispatch()
    wanted = sealed_numbers(store)
    assert 200 < len(wanted) < 400
    url = f"file://{store.path}"
    frame = read(spark, url, **SEALED)
    assert numbers(frame) == wanted
    assert frame.select("store").distinct().collect() == [(url,)]
    assert numbers(read(spark, store, **SEALED, topic="topic-1")) == [n for n in wanted if n % 2]
    many = read(spark, url, **SEALED, minPartitions="4")
    assert many.rdd.getNumPartitions() >= 4
    assert numbers(many.filter("partition = 1")) == [n for n in wanted if n % 3 == 1]
    fill(store, 400, 400)
    assert numbers(read(spark, url, **SEALED)) == sealed_numbers(store)
    assert numbers(read(spark, url)) == list(range(800)), "a local path without the option is attached to"


@pytest.mark.slow
def test_options_of_queues_mean_the_same(spark, make_store):
    store = make_store(count=400)
    store.dispatch()
    wanted = sealed_numbers(store)
    offsets = {str(queue): 5 for queue in range(3)}
    messages = [m for m in store.scan() if int(m.properties["number"]) in set(wanted)]
    by_offset = {"topic": "topic-1", "startingOffsets": json.dumps({"topic-1": offsets})}
    for options, keeps in (
        (by_offset, lambda m: m.topic == "topic-1" and m.queue_offset >= 5),
        ({"subscribePattern": ".*-0"}, lambda m: m.topic == "topic-0"),
        ({"assign": '{"topic-0":[1]}'}, lambda m: (m.topic, m.queue_id) == ("topic-0", 1)),
        ({"key": "key-33"}, lambda m: "key-33" in m.keys),
        ({"endingTimestamp": "2"}, lambda m: False),
    ):
        expected = [int(m.properties["number"]) for m in messages if keeps(m)]
        assert numbers(read(spark, store, **SEALED, **options)) == expected, options
    beyond = json.dumps({"topic-1": {"0": 10_000, "1": 0, "2": 0}})
    told = refused(read(spark, store, **SEALED, topic="topic-1", startingOffsets=beyond))
    assert "offset 10000 of topic-1/0 is not between 0 and" in told


@pytest.mark.slow
def test_stores_in_one_load_and_a_table_in_sql(spark, make_store, tmp_path):
    one, two = make_store("store-1", 200), make_store("store-2", 0)
    fill(two, 200, 200)
    both = sealed_numbers(one) + sealed_numbers(two)
    assert numbers(read(spark, f"file://{tmp_path}/store-*", **SEALED)) == both
    urls = json.dumps([f"file://{one.path}", f"file://{two.path}"])
    spark.sql(f"CREATE TABLE sealed USING cystore OPTIONS (paths '{urls}', sealedSegments 'true')")
    try:
        assert spark.sql("SELECT count(*) FROM sealed").collect() == [(len(both),)]
    finally:
        spark.sql("DROP TABLE sealed")


@pytest.mark.slow
def test_what_is_wrong_with_a_url_is_told_at_load(spark, make_store, tmp_path):
    from pyspark.errors import PySparkException

    store = make_store(count=400)
    for path, options, message in (
        (f"file://{tmp_path}/missing", SEALED, "there is no store here"),
        (f"file://{tmp_path}/missing-*", SEALED, "no store matches"),
        ("s3://key:hush-hush@bucket/store", {}, "a URL must not contain credentials"),
        ("nope://bucket/store", {}, "scheme nope"),
        (
            f"file://{store.path}",
            {**SEALED, "includeArchive": "true"},
            "includeArchive needs the path of a store",
        ),
    ):
        with pytest.raises(PySparkException, match=message) as error:
            read(spark, path, **options)
        assert "hush" not in str(error.value)
    gone = Path(store.path, "commitlog", f"{LOG_BYTES:020d}")
    gone.rename(tmp_path / "gone")
    told = refused(read(spark, store, **SEALED))
    assert "the segment is missing between others" in told and f"file://{gone}" in told
    left = numbers(read(spark, store, **SEALED, failOnDataLoss="false"))
    assert 0 < len(left) < 400
    (tmp_path / "gone").rename(gone)


@pytest.mark.slow
def test_a_stream_is_not_read_by_url(spark, make_store):
    from pyspark.errors import PySparkException

    frame = spark.readStream.format("cystore").options(**SEALED).load(str(make_store(count=10).path))
    with pytest.raises(PySparkException, match="a stream needs the path of a store"):
        frame.writeStream.format("noop").start().processAllAvailable()


def test_urls_and_paths_in_one_load(make_store):
    """A local store whole, of the other what is sealed; in the process itself."""
    from cystore.spark.data_source import CystoreDataSource
    from tests.support.s3 import object_store

    here, there = make_store("here", 100), make_store("there", 0)
    fill(there, 300, 100)
    with object_store() as server:
        url = server.copy(Path(there.path), "there")
        options = {f"fs.{name}": value for name, value in server.options.items()}
        source = CystoreDataSource({"paths": json.dumps([url, str(here.path)]), **options})
        reader = source.reader(source.schema())
        rows = [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]
    found = {
        name: [dict(row["properties"])["number"] for row in rows if row["store"] == name]
        for name in (str(here.path), url)
    }
    assert [int(number) for number in found[str(here.path)]] == list(range(100))
    assert [int(number) for number in found[url]] == sealed_numbers(there)


@pytest.mark.slow
def test_executors_read_an_object_store(spark_folder: Path, make_store, tmp_path: Path):
    """Two executors in processes of their own; the store's folder is gone. No plan shows a secret."""
    from tests.support.s3 import SECRET, object_store

    store = make_store(count=600)
    store.dispatch()
    store.flush()
    wanted = sealed_numbers(store)
    with object_store() as server:
        url = server.copy(Path(store.path), "store")
        store.close()
        shutil.rmtree(store.path)
        with program("by_url", str(tmp_path), url, json.dumps(server.options)) as driver:
            told = answer(driver)
    assert told["numbers"] == wanted
    assert told["hosts"] == [url]
    assert "cystore" in told["plan"] and SECRET not in told["plan"]
