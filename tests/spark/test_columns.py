"""Goal: only the columns and rows that are named are decoded, by option, in SQL tables, through the helpers and in
streams. Method: stores of known rows in one local session; plans of the reader itself."""

from __future__ import annotations

from typing import Any

import pytest

import cystore
from tests.spark.conftest import fill
from tests.support.small_stores import LOG_BYTES, open_small

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

import cystore.spark
from cystore.columns.arrow import to_arrow
from cystore.errors import OffsetError, StoreConfigError
from cystore.spark.data_source import CystoreDataSource
from cystore.spark.source import plan
from tests.spark.test_stream import stream_reader


def reader_of(store: Any, **options: str) -> Any:
    source = CystoreDataSource({"path": str(store.path), **options})
    return source.reader(source.schema())


def test_options_columns_and_tags_decide_what_is_decoded(make_store):
    store = make_store(count=60)
    reader = reader_of(store, columns="tags, offset", tags="odd", topic="topic-1")
    assert reader._settings.columns == ("tags", "offset"), "nothing else is decoded"
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(rows) == 30 and {tuple(row) for row in rows} == {("tags", "offset")}
    assert {row["tags"] for row in rows} == {"odd"}
    assert [
        p for p in reader_of(store, tags="even", topic="topic-1").partitions() if p.rows.tags != ("even",)
    ] == []
    for wrong in ("nope", "offset,offset", "offset,", "corrupt"):
        with pytest.raises(StoreConfigError, match="columns must"):
            reader_of(store, columns=wrong)
    assert reader_of(store, columns="corrupt", onCorruption="column")._settings.columns == ("corrupt",)
    source = CystoreDataSource({"path": str(store.path), "columns": "offset"})
    with pytest.raises(StoreConfigError, match="give only one of the two"):
        source.reader(CystoreDataSource({"path": str(store.path)}).schema())


def test_a_stream_with_tags_keeps_to_them(make_store):
    store = make_store(count=40)
    reader = stream_reader(store, tags="even", columns="offset,tags")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = [
        row
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert len(rows) == 20 and {row["tags"] for row in rows} == {"even"}
    with pytest.raises(OffsetError, match="with other options"):
        stream_reader(store, tags="odd").latestOffset(end, ReadAllAvailable())


def test_partitions_follow_size_and_cores(make_store, monkeypatch):
    """Seen: up to 128 MiB, and up to 512 of numbers, were one task, however many cores stood idle."""
    store = make_store(count=1500)
    fill(store, 1500, 1500)
    store.flush()
    monkeypatch.setattr(plan, "PIECE_BYTES", 64 * LOG_BYTES)
    monkeypatch.setattr(plan, "NUMBERS_PIECE_BYTES", 256 * LOG_BYTES)
    total = store.wrote_position

    def sizes(**options: str) -> list[int]:
        return [part.size_bytes for part in reader_of(store, **options).partitions()]

    assert 30 * LOG_BYTES < total < 60 * LOG_BYTES
    assert len(sizes(cores="1")) == 1
    assert len(sizes(cores="2")) == 2 and max(sizes(cores="2")) < total * 0.6
    assert len(sizes(cores="64")) == total // (16 * LOG_BYTES), (
        "not so small that tasks cost more than they read"
    )
    assert len(sizes(cores="2", columns="offset")) == 1
    assert sum(sizes(cores="3")) == total
    with pytest.raises(StoreConfigError, match="cores must be"):
        reader_of(store, cores="0")


def test_helpers_and_sql_tables_prune_columns(spark, make_store):
    """Seen: SELECT offset FROM a table read and decoded all 13 columns."""
    store = make_store(count=60)
    path = str(store.path)
    frame = cystore.spark.table(spark, store.path, "topic-1", columns=["offset", "tags"], tags="odd")
    assert frame.columns == ["offset", "tags"] and frame.count() == 30
    assert cystore.spark.count(spark, path) == 60
    assert cystore.spark.count(spark, path, ["topic-0"], key="key-2,key-3") == 1
    with pytest.raises(StoreConfigError, match="no option topics"):
        cystore.spark.table(spark, path, topics="topic-1")

    spark.sql(
        f"CREATE TABLE narrow USING cystore OPTIONS (path '{path}', columns 'topic,offset', tags 'even')"
    )
    try:
        assert spark.table("narrow").columns == ["topic", "offset"]
        (row,) = spark.sql("SELECT count(*), min(topic), max(offset) FROM narrow").collect()
        assert tuple(row) == (30, "topic-0", max(m.queue_offset for m in store.scan() if m.tags == "even"))
    finally:
        spark.sql("DROP TABLE narrow")

    made = cystore.spark.views(spark, path, prefix="of-", columns="offset")
    assert made == {"topic-0": "`of-topic-0`", "topic-1": "`of-topic-1`"}
    counted = spark.sql(
        "SELECT (SELECT count(*) FROM `of-topic-0`), (SELECT max(offset) FROM `of-topic-1`)"
    ).first()
    assert tuple(counted) == (30, max(m.queue_offset for m in store.scan() if m.topic == "topic-1"))
    for name in made.values():
        spark.catalog.dropTempView(name.strip("`"))


def test_views_of_topics_that_differ_in_case_are_refused(spark, make_store):
    """Seen: Orders had the rows of orders, because Spark's names ignore case and the later view replaced the other."""
    store = make_store()
    store.put_many(
        [cystore.Message(topic=topic, body=b"x") for topic in ("Orders", "orders", "orders", "plain")]
    )
    store.flush()
    path = str(store.path)
    for topics in (None, ["plain", "orders", "Orders"]):
        with pytest.raises(StoreConfigError, match=r"topics [oO]rders and [oO]rders would be one view"):
            cystore.spark.views(spark, path, topics)
        assert not spark.catalog.listTables(), "no view is made before the check"
    made = {
        **cystore.spark.views(spark, path, ["Orders", "plain", "plain"], prefix="large-", columns="topic"),
        **cystore.spark.views(spark, path, ["orders"], prefix="small-`", columns="topic"),
    }
    for topic, count in (("Orders", 1), ("orders", 2), ("plain", 1)):
        assert [row.topic for row in spark.sql(f"SELECT topic FROM {made[topic]}").collect()] == [
            topic
        ] * count
    for name in made.values():
        spark.sql(f"DROP VIEW {name}")


def test_light_queues_get_no_view_and_are_refused_by_name(spark, make_store, tmp_path):
    """Seen: a view for each light queue, and each of them was empty."""
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    with open_small(tmp_path / "light", **settings) as store:
        store.put("orders", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
    path = str(tmp_path / "light")
    assert cystore.spark.views(spark, path, columns="offset") == {"orders": "`orders`"}
    spark.sql("DROP VIEW orders")
    for option, value in (
        ("topic", "orders,%LMQ%a"),
        ("subscribe", "%LMQ%a"),
        ("assign", '{"%LMQ%a":[0]}'),
    ):
        with pytest.raises(StoreConfigError, match=r"%LMQ%a is a light queue.*store\.get\('%LMQ%a', 0, 0\)"):
            CystoreDataSource({"path": path, option: value}).reader(None)
    with pytest.raises(StoreConfigError, match="is a light queue"):
        cystore.spark.views(spark, path, ["%LMQ%a"])
    with pytest.raises(StoreConfigError, match="is a light queue"):
        to_arrow(path, topic="%LMQ%a")
