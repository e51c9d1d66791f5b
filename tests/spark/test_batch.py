"""Goal: a batch read gives each message once, in the columns, ranges and rows that were asked for, or says why it
cannot. Method: one local Spark session and small stores; scenarios of Spark's Kafka source and its Python data
sources, written anew."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.celery.base import events
from cystore.spark.task_events import task_events
from cystore.spark.task_runs import read_runs
from tests.spark.conftest import fill
from tests.support.celery.logs import event_message
from tests.support.small_stores import open_small

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def read(spark: Any, store: Any, **options: Any) -> Any:
    path = str(store.path) if isinstance(store, cystore.MessageStore) else str(store)
    return spark.read.format("cystore").options(**options).load(path)


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.properties["number"]) for row in frame.select("properties").collect())


def refused(frame: Any) -> str:
    """Spark's text for a failing action."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as error:
        frame.collect()
    return str(error.value)


def test_every_column_of_every_message(spark, make_store):
    store = make_store(count=200)
    rows = {row.physical_offset: row for row in read(spark, store).collect()}
    messages = list(store.scan())
    assert sorted(rows) == [message.physical_offset for message in messages]
    for message in messages:
        row = rows[message.physical_offset]
        assert (row.topic, row.partition, row.offset) == (
            message.topic,
            message.queue_id,
            message.queue_offset,
        )
        assert (row.key, row.keys, row.tags) == (message.keys[0], list(message.keys), message.tags)
        assert (bytes(row.value), row.properties) == (bytes(message.body), dict(message.properties))
        assert (row.sys_flag, row.store) == (message.sys_flag, str(store.path))
        stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC).replace(tzinfo=None)
        assert abs((row.timestamp - stored).total_seconds()) < 0.0005


def test_a_task_whose_events_are_at_several_homes_is_one_run(spark, make_store, tmp_path):
    """On a host with the replicas of a fleet: one store has the sending, another one the run."""
    (tmp_path / "replicas").mkdir()
    own, replica = make_store("own"), make_store("replicas/a")
    own.put_many([event_message(events.SENT, "t", "shop.pay")])
    replica.put_many([event_message(kind, "t", "shop.pay") for kind in (events.STARTED, events.SUCCEEDED)])
    places = [str(own.path), f"{tmp_path}/replicas/*"]
    (run,) = read_runs(spark.read, places).collect()
    assert (run.task_id, run.outcome, run.wait is not None) == ("t", events.SUCCEEDED, True)
    stores = task_events(spark.read, places).groupBy("store").count().collect()
    assert {row.store: row["count"] for row in stores} == {str(own.path): 1, str(replica.path): 2}


def test_columns_are_chosen_with_a_schema(spark, make_store):
    store = make_store(count=50)
    frame = spark.read.format("cystore").schema("offset LONG, topic STRING").load(str(store.path))
    assert frame.columns == ["offset", "topic"]
    counted = sorted(tuple(row) for row in frame.groupBy("topic").count().collect())
    assert counted == [("topic-0", 25), ("topic-1", 25)]
    assert "no column nope; the columns are key" in refused(
        spark.read.format("cystore").schema("nope INT").load(str(store.path))
    )
    wrong = refused(spark.read.format("cystore").schema("offset STRING").load(str(store.path)))
    assert "column offset is bigint, not string" in wrong


@pytest.mark.parametrize(
    ("enabled", "option"),
    [("true", "true"), ("true", "false"), pytest.param("false", "true", marks=pytest.mark.slow)],
)
def test_filters_with_and_without_push_down(spark, make_store, enabled, option):
    """One DataFrame serves all queries, as in a notebook, unless it takes filters: then each query loads its own."""
    store = make_store(count=240)
    messages = list(store.scan())
    middle = messages[120].physical_offset
    conditions = {
        "topic = 'topic-1'": lambda m: m.topic == "topic-1",
        "topic in ('topic-0', 'x') and partition = 2": lambda m: (m.topic, m.queue_id) == ("topic-0", 2),
        "offset >= 3 and offset < 9": lambda m: 3 <= m.queue_offset < 9,
        "key = 'key-77'": lambda m: m.keys[0] == "key-77",
        "key = 'all'": lambda m: False,
        "key = 'key-7' and topic = 'topic-0'": lambda m: False,
        "tags = 'even' or offset = 3": lambda m: m.tags == "even" or m.queue_offset == 3,
        f"physical_offset > {middle}": lambda m: m.physical_offset > middle,
        "timestamp > timestamp'2020-01-01'": lambda m: True,
        "timestamp > timestamp'2120-01-01'": lambda m: False,
        "offset < 3 and offset > 5": lambda m: False,
        "properties['number'] = '5'": lambda m: m.properties["number"] == "5",
    }
    spark.conf.set(PUSH_DOWN, enabled)
    try:
        frame = read(spark, store, filterPushdown=option)
        for condition, keeps in conditions.items():
            frame = read(spark, store, filterPushdown=option) if option == "true" else frame
            expected = [int(m.properties["number"]) for m in messages if keeps(m)]
            assert numbers(frame.filter(condition)) == expected, condition
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_options_choose_messages(spark, make_store):
    store = make_store(count=120)
    messages = list(store.scan())

    def expected(keeps: Any) -> list[int]:
        return [int(m.properties["number"]) for m in messages if keeps(m)]

    queues = {0: 0, 1: 1, 2: 2}
    by_offset = json.dumps({"topic-1": {"0": 5, "1": -2, "2": 7}})
    ends = json.dumps({"topic-1": {"0": 6, "1": 3, "2": -1}})
    first, behind = {0: 5, 1: 0, 2: 7}, {0: 6, 1: 3, 2: 10**9}
    cases = [
        ({"topic": "topic-1"}, lambda m: m.topic == "topic-1"),
        ({"subscribe": "topic-1,topic-0"}, lambda m: True),
        ({"subscribePattern": ".*-1"}, lambda m: m.topic == "topic-1"),
        ({"subscribePattern": "other.*"}, lambda m: False),
        ({"assign": '{"topic-0":[1,2]}'}, lambda m: m.topic == "topic-0" and m.queue_id in (1, 2)),
        ({"key": "key-33"}, lambda m: "key-33" in m.keys),
        ({"key": "all", "topic": "topic-0"}, lambda m: m.topic == "topic-0"),
        ({"startingTimestamp": "1", "endingTimestamp": "2"}, lambda m: False),
        (
            {"topic": "topic-1", "startingOffsets": by_offset, "endingOffsets": ends},
            lambda m: m.topic == "topic-1" and first[m.queue_id] <= m.queue_offset < behind[m.queue_id],
        ),
        (
            {
                "topic": "topic-1",
                "startingOffsetsByTimestamp": json.dumps({"topic-1": dict.fromkeys(queues, 1)}),
            },
            lambda m: m.topic == "topic-1",
        ),
    ]
    for options, keeps in cases:
        assert numbers(read(spark, store, **options)) == expected(keeps), options


def test_offsets_by_partition_name_every_partition(spark, make_store):
    store = make_store(count=60)
    too_few = refused(read(spark, store, topic="topic-1", startingOffsets='{"topic-1":{"0":1}}'))
    assert "startingOffsets does not name topic-1/1, topic-1/2" in too_few
    too_many = json.dumps({"topic-1": {"0": 1, "1": 1, "2": 1, "9": 1}})
    assert "names topic-1/9" in refused(read(spark, store, topic="topic-1", startingOffsets=too_many))


def test_offsets_that_are_not_there_are_data_loss(spark, make_store):
    store = make_store(count=60)
    beyond = json.dumps({"topic-1": {"0": 10_000, "1": 0, "2": 0}})
    options = {"topic": "topic-1", "startingOffsets": beyond}
    assert "offset 10000 of topic-1/0 is not between 0 and 10" in refused(read(spark, store, **options))
    assert len(numbers(read(spark, store, **options, failOnDataLoss="false"))) == 20


def test_several_stores_in_one_load(spark, make_store, tmp_path):
    one, two = make_store("store-1"), make_store("store-2")
    fill(one, 30)
    fill(two, 30, 30)
    both = [str(one.path), str(two.path)]
    frame = spark.read.format("cystore").load(both)
    assert numbers(frame) == list(range(60))
    assert sorted(row.store for row in frame.select("store").distinct().collect()) == both
    assert numbers(read(spark, tmp_path / "store-*")) == list(range(60))
    spark.sql(f"CREATE TABLE several USING cystore OPTIONS (path '{tmp_path}/store-*')")
    try:
        assert spark.sql("SELECT count(*) FROM several").collect() == [(60,)]
    finally:
        spark.sql("DROP TABLE several")


def test_a_table_in_sql(spark, make_store):
    store = make_store(count=40)
    spark.sql(f"CREATE TABLE messages USING cystore OPTIONS (path '{store.path}', topic 'topic-0')")
    try:
        assert spark.sql("SELECT count(*), max(offset) FROM messages").collect() == [(20, 6)]
        fill(store, 40, 40)
        assert spark.sql("SELECT count(*) FROM messages WHERE topic = 'topic-0'").collect() == [(40,)]
    finally:
        spark.sql("DROP TABLE messages")


def test_many_partitions_hold_every_message_once(spark, make_store):
    store = make_store(count=400)
    store.dispatch()  # the queues tell where records begin
    frame = read(spark, store, minPartitions="9")
    assert 9 <= frame.rdd.getNumPartitions() <= 20
    assert numbers(frame) == list(range(400))
    assert read(spark, store).rdd.getNumPartitions() == 1


def test_a_task_gets_more_log_where_only_numbers_are_wanted(make_store, monkeypatch):
    from pyspark.sql.types import StructType

    from cystore.spark.data_source import CystoreDataSource
    from cystore.spark.source import plan

    store = make_store(count=600)
    store.dispatch()
    monkeypatch.setattr(plan, "PIECE_BYTES", 2048)
    monkeypatch.setattr(plan, "NUMBERS_PIECE_BYTES", 8192)
    source = CystoreDataSource({"path": str(store.path), "cores": "1"})
    found = {}
    for name, kind in (("timestamp", "timestamp"), ("value", "binary")):
        reader = source.reader(StructType().add("offset", "long").add(name, kind))
        partitions = reader.partitions()
        assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 600
        found[name] = sorted(part.size_bytes for part in partitions)
    numbers, text = found["timestamp"], found["value"]
    assert len(text) > 3 * len(numbers)
    assert numbers[0] > 8192 * 0.8  # alike: there is no rest
    assert numbers[-1] < 8192 * 2


def test_no_task_is_left_with_the_rest(make_store, monkeypatch):
    """Five segments, the last of which is not full, where two are worth a task: two tasks, not a third one for the
    last."""
    from cystore.spark.data_source import CystoreDataSource
    from cystore.spark.source import plan

    store = make_store(count=380)
    store.dispatch()
    monkeypatch.setattr(plan, "PIECE_BYTES", 32_768)
    source = CystoreDataSource({"path": str(store.path), "cores": "1"})
    sizes = [part.size_bytes for part in source.reader(source.schema()).partitions()]
    assert 2.2 < sum(sizes) / 32_768 < 2.7
    assert len(sizes) == 2
    assert min(sizes) > 0.9 * 32_768


def test_a_plan_is_a_snapshot_while_a_writer_goes_on(make_store):
    """Records that are appended after planning, in the same segment and in new ones, are not read."""
    from cystore.spark.data_source import CystoreDataSource

    store = make_store(count=70)
    source = CystoreDataSource({"path": str(store.path), "minPartitions": "3"})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    fill(store, 300, 70)
    rows = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
    assert [int(dict(row["properties"])["number"]) for row in rows] == list(range(70))


def test_an_empty_store_and_one_that_nobody_recovered(spark, make_store, tmp_path):
    assert read(spark, make_store("empty")).collect() == []
    store = make_store("used", 70)
    shutil.copytree(store.path, tmp_path / "crashed")
    settings = {
        f"cystore.{name}": str(value) for name, value in (("services", "none"), ("max_index_num", 1000))
    }
    sizes = {
        "cystore.mapped_file_size_commit_log_bytes": str(16 * 1024),
        "cystore.mapped_file_size_consume_queue_bytes": "2000",
        "cystore.max_hash_slot_num": "101",
    }
    assert numbers(read(spark, tmp_path / "crashed", **settings, **sizes)) == list(range(70))


def test_what_is_no_store_is_refused_at_load(spark, tmp_path):
    from pyspark.errors import PySparkException

    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("x")
    with pytest.raises(PySparkException, match="there is no store here"):
        read(spark, tmp_path / "missing")
    with pytest.raises(PySparkException, match="no option colour"):
        read(spark, tmp_path / "foreign", colour="red")
    assert "the directory is not a store" in refused(read(spark, tmp_path / "foreign"))


@pytest.fixture
def damaged(make_store):
    """A store with a flipped bit in its 21st message."""
    store = make_store(count=100)
    store.dispatch()
    bad = list(store.scan())[20]
    path = Path(store.path, "commitlog", f"{0:020d}")
    with path.open("r+b") as file:
        file.seek(bad.physical_offset + 120)
        byte = file.read(1)[0]
        file.seek(bad.physical_offset + 120)
        file.write(bytes([byte ^ 0xFF]))
    return store, bad.physical_offset, bad.physical_offset + bad.size_bytes


def test_damage_in_the_range(spark, damaged):
    store, begin, end = damaged
    told = refused(read(spark, store))
    assert "the log is damaged" in told
    assert f"[offset {begin}]" in told
    others = [number for number in range(100) if number != 20]
    assert numbers(read(spark, store, onCorruption="skip")) == others
    frame = read(spark, store, onCorruption="column")
    (row,) = frame.filter("corrupt is not null").collect()
    assert (row.physical_offset, row.corrupt, row.corrupt_end) == (begin, "bad checksum", end)
    assert numbers(frame.filter("corrupt is null")) == others


def test_a_segment_that_is_removed_between_planning_and_reading(spark, tmp_path):
    from pyspark.sql.types import StructType

    from cystore.columns.arrow import COLUMNS
    from cystore.errors import OffsetError
    from cystore.spark.data_source import CystoreDataSource

    with open_small(tmp_path / "s") as store:
        fill(store, 300)
    for fail in ("true", "false"):
        source = CystoreDataSource({"path": str(tmp_path / "s"), "failOnDataLoss": fail})
        schema = StructType.fromJson(source.schema().jsonValue())
        assert schema.fieldNames() == list(COLUMNS)
        reader = source.reader(schema)
        (partition,) = reader.partitions()
        gone = Path(partition.ranges[0].path)
        kept = gone.rename(tmp_path / "kept")
        if fail == "true":
            with pytest.raises(OffsetError, match="removed after the read was planned"):
                list(reader.read(partition))
        else:
            assert 0 < sum(batch.num_rows for batch in reader.read(partition)) < 300
        kept.rename(gone)


def test_a_key_is_looked_up_in_the_index(make_store):
    """The query reads the messages with the key, not the log."""
    from pyspark.sql.datasource import EqualTo

    from cystore.spark.data_source import CystoreDataSource

    store = make_store(count=300)
    store.dispatch()
    source = CystoreDataSource({"path": str(store.path), "filterPushdown": "true"})
    reader = source.reader(source.schema())
    assert list(reader.pushFilters([EqualTo(("key",), "key-250")])) == [EqualTo(("key",), "key-250")]
    (partition,) = reader.partitions()
    (message,) = (m for m in store.scan() if m.keys[0] == "key-250")
    assert [(part.begin, part.end) for part in partition.ranges] == [
        (message.physical_offset, message.physical_offset + message.size_bytes)
    ]
    none = source.reader(source.schema())
    none.pushFilters([EqualTo(("key",), "nobody")])
    assert none.partitions() == []
