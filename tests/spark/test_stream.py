"""Goal: a stream gives each message once, batch by batch within its limits, and continues where its checkpoint says.
Method: streams into memory and Parquet, restarted, in the local session; offsets by the reader itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.spark.conftest import fill
from tests.support.small_stores import LOG_BYTES, open_small

pytest.importorskip("pyspark", reason="pip install 'cystore[spark]'")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from cystore.errors import OffsetError, StoreConfigError
from cystore.spark.data_source import CystoreDataSource

NO_MATCH = {"startingOffsetsByTimestampStrategy": "latest"}


def stream_reader(store: Any, **options: Any) -> Any:
    path = str(store.path) if isinstance(store, cystore.MessageStore) else str(store)
    source = CystoreDataSource({"path": path, "startingOffsets": "earliest", **options})
    return source.streamReader(source.schema())


def numbers_of(reader: Any, start: dict, end: dict) -> list[int]:
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [int(dict(row["properties"])["number"]) for row in batch.to_pylist()]
    return found


def flat(found: list[list[int]]) -> list[int]:
    return [number for batch in found for number in batch]


def batches(reader: Any, limit: Any) -> list[list[int]]:
    """All micro-batches up to the end of the store, as Spark would ask for them: offsets go through JSON."""
    start, found = json.loads(json.dumps(reader.initialOffset())), []
    while True:
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        if end == start:
            return found
        found.append(numbers_of(reader, start, end))
        start = end


def test_a_batch_holds_at_most_so_many_rows(make_store):
    store = make_store(count=130)
    limited = batches(stream_reader(store), ReadMaxRows(40))
    assert [len(batch) for batch in limited] == [40, 40, 40, 10]
    assert flat(limited) == list(range(130))
    assert [len(batch) for batch in batches(stream_reader(store), ReadMaxRows(129))] == [129, 1]
    half = batches(stream_reader(store, topic="topic-1"), ReadMaxRows(40))
    assert [len(batch) for batch in half] == [40, 25]


def test_a_batch_holds_at_most_so_many_bytes(make_store):
    store = make_store(count=130)
    sizes = [message.size_bytes for message in store.scan()]
    limited = batches(stream_reader(store), ReadMaxBytes(5000))
    assert flat(limited) == list(range(130))
    assert max(sum(sizes[number] for number in batch) for batch in limited) <= 5000
    assert len(limited) < 12
    assert [len(batch) for batch in batches(stream_reader(store), ReadMaxBytes(1))] == [1] * 130


@pytest.mark.parametrize(("limit", "least"), [(ReadMaxRows(60), 60), (ReadMaxBytes(9000), 38)])
def test_what_an_exhausted_store_leaves_of_the_limit_another_one_takes(make_store, tmp_path, limit, least):
    """Seen: of two stores the second, which had nothing new, kept its half of every batch."""
    make_store("store-1", 200)
    make_store("store-2", 3)
    found = batches(stream_reader(tmp_path / "store-*"), limit)
    assert len(flat(found)) == 203
    assert all(len(batch) >= least for batch in found[:-1])


def test_a_store_with_a_long_log_of_other_topics_keeps_no_share(make_store, tmp_path):
    """Seen: the share of a store with much log and few wanted rows went to nobody."""
    make_store("store-1", 40)
    other = make_store("store-2", 4)
    other.put_many([cystore.Message(topic="other", body=b"x" * 100)] * 300)
    other.flush()
    found = batches(stream_reader(tmp_path / "store-*", subscribePattern="topic-.*"), ReadMaxRows(20))
    assert [len(batch) for batch in found] == [20, 20, 4]


def test_a_stream_with_bad_options_says_so_when_it_starts(spark, make_store):
    """Seen: PySpark's UnboundLocalError instead of what is wrong."""
    from pyspark.errors import PySparkException

    store = make_store(count=1)
    frame = spark.readStream.format("cystore").schema("value BINARY").option("endingOffsets", "latest")
    query = frame.load(str(store.path)).writeStream.format("memory").queryName("refused").start()
    with pytest.raises(PySparkException) as error:
        query.processAllAvailable()
    assert "option endingOffsets is for batches only" in str(error.value)
    assert "UnboundLocalError" not in str(error.value)


def test_both_limits_hold(make_store):
    reader = stream_reader(make_store(count=60), maxOffsetsPerTrigger="50", maxBytesPerTrigger="2000")
    assert reader.getDefaultReadLimit() == ReadMaxRows(50)
    assert all(0 < len(batch) <= 11 for batch in batches(reader, ReadMaxRows(50)))
    assert stream_reader(make_store("other"), maxBytesPerTrigger="7").getDefaultReadLimit() == ReadMaxBytes(7)


def test_only_what_is_durable_is_read(make_store):
    store = make_store(count=20)
    fill(store, 20, 20)
    reader = stream_reader(store)
    assert batches(reader, ReadAllAvailable()) == [list(range(20))]
    store.flush()
    assert batches(reader, ReadAllAvailable()) == [list(range(40))]


def test_available_now_ends_where_the_log_ended(make_store):
    store = make_store(count=50)
    reader = stream_reader(store)
    reader.prepareForTriggerAvailableNow()
    fill(store, 50, 50)
    store.flush()
    assert flat(batches(reader, ReadMaxRows(30))) == list(range(50))


def test_where_a_stream_begins(make_store):
    store = make_store(count=60)
    everything = ReadAllAvailable()
    latest = stream_reader(store, startingOffsets="latest")
    start = latest.initialOffset()
    fill(store, 6, 60)
    store.flush()
    assert numbers_of(latest, start, latest.latestOffset(start, everything)) == list(range(60, 66))
    by_queue = json.dumps({"topic-1": {"0": 5, "1": -2, "2": -1}})
    reader = stream_reader(store, topic="topic-1", startingOffsets=by_queue)
    offsets = [
        (m.queue_id, m.queue_offset, int(m.properties["number"]))
        for m in store.scan()
        if m.topic == "topic-1"
    ]
    wanted = [number for queue, offset, number in offsets if queue == 1 or (queue == 0 and offset >= 5)]
    assert flat(batches(reader, ReadMaxRows(4))) == wanted
    with pytest.raises(StoreConfigError, match="startingOffsets does not name topic-1/1"):
        stream_reader(store, topic="topic-1", startingOffsets='{"topic-1":{"0":5,"2":1}}').initialOffset()
    for at_ms, count in ((1, 66), (10**15, 0)):
        timed = stream_reader(store, startingTimestamp=str(at_ms), **NO_MATCH)
        assert len(flat(batches(timed, everything))) == count
        per_queue = {f"topic-{topic}": dict.fromkeys(range(3), at_ms) for topic in range(2)}
        timed = stream_reader(store, startingOffsetsByTimestamp=json.dumps(per_queue), **NO_MATCH)
        assert len(flat(batches(timed, everything))) == count


def test_a_store_that_comes_later_is_read_from_its_beginning(make_store, tmp_path):
    make_store("store-1", 20)
    reader = stream_reader(tmp_path / "store-*")
    start = reader.initialOffset()
    two = make_store("store-2")
    fill(two, 10, 20)
    two.flush()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sorted(numbers_of(reader, start, end)) == list(range(30))
    assert reader.latestOffset(end, ReadAllAvailable())["stores"].keys() == end["stores"].keys()


def test_a_closed_store_is_looked_at_again_when_it_changes(tmp_path):
    with open_small(tmp_path / "s") as store:
        fill(store, 20)
    reader = stream_reader(tmp_path / "s")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    with open_small(tmp_path / "s") as store:
        fill(store, 20, 20)
    more = reader.latestOffset(end, ReadAllAvailable())
    assert numbers_of(reader, start, end) + numbers_of(reader, end, more) == list(range(40))
    reader.stop()


def test_lost_positions(make_store, tmp_path):
    """Segments that were cleaned before they were read, and a log that is shorter than the checkpoint says."""
    store = make_store(count=300)
    beyond = {"stores": {str(store.path): {"position": 10**9}}}
    below = {"stores": {str(store.path): {"position": 0}}}
    reader = stream_reader(store)
    end = reader.latestOffset(below, ReadAllAvailable())
    with pytest.raises(OffsetError, match="the log ends at"):
        reader.latestOffset(beyond, ReadAllAvailable())
    store.close()
    with open_small(tmp_path / "store") as cleaned:
        cleaned.configure(file_reserved_time_h=0)
        assert cleaned.clean().segments
        with pytest.raises(OffsetError, match="were removed before they were read"):
            reader.partitions(below, end)
        reader.stop()
        lenient = stream_reader(cleaned, failOnDataLoss="false")
        kept = [int(m.properties["number"]) for m in cleaned.scan()]
        assert numbers_of(lenient, below, end) == kept
    assert kept[0] > LOG_BYTES // 400


def test_a_stream_into_parquet_goes_on_from_its_checkpoint(spark, make_store, tmp_path):
    store = make_store(count=100)
    into, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run(**options: str) -> None:
        frame = spark.readStream.format("cystore").options(startingOffsets="earliest", **options)
        frame = frame.load(str(store.path)).selectExpr(
            "cast(properties['number'] as int) as number", "offset"
        )
        query = (
            frame.writeStream.format("parquet").option("path", into).option("checkpointLocation", checkpoint)
        )
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(300)

    run(maxOffsetsPerTrigger="30")
    last = max(Path(checkpoint, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    aged = re.sub(r', "(id": "\w+"|log": \[[\d, ]+\]|reads": {})', "", last.read_text())
    assert '"position"' in aged and '"id"' not in aged  # as an earlier version left it
    last.write_text(aged)
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    fill(store, 50, 100)
    store.flush()
    run()
    run()
    with pytest.raises(StreamingQueryException, match=r"with other options: all topics, now topic=topic-1"):
        run(topic="topic-1")
    rows = sorted(row.number for row in spark.read.parquet(into).collect())
    assert rows == list(range(150))
    batches_done = list(Path(checkpoint, "commits").glob("[0-9]*"))
    assert len(batches_done) == 5
