"""Goal: RocketMQ 4.9.3 reads what cystore writes in `rocketmq` format. Method: cystore puts the messages of a spec of
every shape; RocketMQ loads a copy of the directory, and its view is compared with what was put, field by field."""

import base64
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import cystore
from cystore import layout
from cystore.config import StoreConfig
from cystore.operate import backup
from tests.support.clock import turn
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop import specs
from tests.support.interop.cystore_side import dump_of_copy, killed_while_putting, put_all
from tests.support.interop.expect import check_queries, check_queues, check_records, check_times, rows_of

# Delays have an issue of their own, and a crash a test of its own.
SHAPES = ("clean", "ext", "batch", "ipv6", "multi_index", "transaction", "edge", "mixed")


def spec_for_cystore(shape: str, seed: int) -> dict:
    """The shape's spec without what a broker does beside storing: delays, property strings of its own."""
    spec = specs.spec(shape, seed)
    spec["messages"] = [
        m for m in spec["messages"] if "propertiesString" not in m and m.get("expect") is None
    ]
    for message in spec["messages"]:
        message.pop("delayTimeLevel", None)
    # RocketMQ dispatches what stands behind the last queue entry again when it opens, and indexes the last record
    # twice then: IndexService skips only records before the last indexed one. A prepared message at the end has no
    # queue entry.
    while not layout.takes_queue_offset(spec["messages"][-1].get("sysFlag", 0)):
        spec["messages"].pop()
    return spec


@pytest.mark.parametrize("shape", SHAPES)
def test_rocketmq_reads_every_shape(rocketmq, shape, seed, tmp_path):
    spec = spec_for_cystore(shape, seed)
    with cystore.open(tmp_path / "store", **cystore_config(spec)) as store:
        stored = put_all(store, spec["messages"])
        store.dispatch()
    rows = dump_of_copy(rocketmq, tmp_path / "store", spec, tmp_path)
    assert rows_of(rows, "state") == [{"type": "state", "abort": False}]
    check_records(rows, stored)
    check_queues(rows, stored, ext=shape == "ext")
    check_queries(rows, stored)
    check_times(rows, spec["config"]["mappedFileSizeConsumeQueue"])
    if shape == "multi_index":
        assert len(rows_of(rows, "indexFile")) > 3
    if shape == "clean":
        assert any(row["type"] == "blank" for row in rows)


@pytest.mark.parametrize("shape", ["clean", "ext", "multi_index"])
def test_rocketmq_reads_a_store_that_was_packed(rocketmq, shape, seed, tmp_path):
    """What a pack leaves out, holes and unwritten ends, is there again."""
    spec = spec_for_cystore(shape, seed)
    with cystore.open(tmp_path / "first", **cystore_config(spec)) as store:
        stored = put_all(store, spec["messages"])
        backup.pack(tmp_path / "first", tmp_path / "pack.tar.gz", StoreConfig())
    backup.unpack(tmp_path / "pack.tar.gz", tmp_path / "store", StoreConfig())
    rows = dump_of_copy(rocketmq, tmp_path / "store", spec, tmp_path)
    assert rows_of(rows, "state") == [{"type": "state", "abort": False}]
    check_records(rows, stored)
    check_queues(rows, stored, ext=shape == "ext")
    check_queries(rows, stored)


def test_rocketmq_dispatches_what_cystore_did_not(rocketmq, seed, tmp_path):
    """Without a dispatch before the close, or with the queues and the index gone, RocketMQ builds them from the log."""
    spec = spec_for_cystore("mixed", seed)
    with cystore.open(tmp_path / "store", **cystore_config(spec)) as store:
        stored = put_all(store, spec["messages"])
    for folder in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / folder, ignore_errors=True)
    rows = dump_of_copy(rocketmq, tmp_path / "store", spec, tmp_path)
    check_records(rows, stored)
    check_queues(rows, stored)
    check_queries(rows, stored)


def test_plain_puts_have_their_defaults(rocketmq, tmp_path):
    config = {**specs.SMALL}
    with cystore.open(tmp_path / "store", **cystore_config({"config": config})) as store:
        store.put("T", b"one", keys=("k1", "k2"), tags="TagA", properties={"p": "v"}, flag=7)
        store.put("T", b"", queue_id=3)
        ours = [*store.get("T", 0, 0).messages, *store.get("T", 3, 0).messages]
        told = [(m.body.tobytes(), m.born_timestamp_ms, m.store_timestamp_ms, m.born_host) for m in ours]
    first, second = rows_of(dump_of_copy(rocketmq, tmp_path / "store", {"config": config}, tmp_path), "msg")
    assert [(m["bornTimestamp"], m["storeTimestamp"], m["bornHost"]) for m in (first, second)] == [
        t[1:] for t in told
    ]
    assert (first["keys"], first["tags"], first["flag"]) == ("k1 k2", "TagA", 7)
    assert first["properties"] == {"KEYS": "k1 k2", "TAGS": "TagA", "p": "v"}
    assert (second["bodyB64"], second["queueId"], second["keys"], second["properties"]) == ("", 3, None, {})
    assert {first["storeHost"], second["storeHost"]} == {"127.0.0.1:10911"}


@pytest.mark.parametrize("dispatched", [True, False])
def test_rocketmq_reads_messages_that_expire(rocketmq, dispatched, tmp_path):
    """Bit 65536 of the sys flag is cystore's own: RocketMQ queues, indexes and returns the messages as any other."""
    config = {**specs.SMALL}
    with cystore.open(tmp_path / "store", **cystore_config({"config": config})) as store:
        for number, at in enumerate((1, None, 99_999_999_999_999_999)):
            store.put("T", b"%d" % number, keys=("k",), tags="A", expires_at_ms=at)
        store.put_many(
            [
                cystore.Message(topic="T", body=b"%d" % number, keys=("k",), expires_at_ms=1)
                for number in (3, 4)
            ],
            batch=True,
        )
        if dispatched:
            store.dispatch()
        ours = list(store.scan())
    if not dispatched:
        for folder in ("consumequeue", "index"):
            shutil.rmtree(tmp_path / "store" / folder, ignore_errors=True)
    rows = dump_of_copy(rocketmq, tmp_path / "store", {"config": config}, tmp_path)
    found = rows_of(rows, "msg")
    assert [row["physicalOffset"] for row in found] == [one.physical_offset for one in ours]
    assert (
        [row["sysFlag"] for row in found] == [one.sys_flag for one in ours] == [65536, 0, 65536, 65536, 65536]
    )
    assert [row["properties"] for row in found] == [dict(one.properties) for one in ours]
    assert [row["bodyB64"] for row in found] == [base64.b64encode(one.body).decode() for one in ours]
    (queue,) = rows_of(rows, "queue")
    assert (queue["minOffset"], queue["maxOffset"]) == (0, 5)
    (answer,) = [row for row in rows_of(rows, "query") if row["key"] == "k"]
    assert sorted(answer["physicalOffsets"]) == [one.physical_offset for one in ours]


def test_rocketmq_recovers_a_store_that_three_writers_were_killed_over(rocketmq, seed, rng, tmp_path):
    spec = spec_for_cystore("mixed", seed)
    path = tmp_path / "store"
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(killed_while_putting, path, spec, rng.randrange(50, 900)) for _ in range(3)]
        acknowledged = {one.physical_offset: one for writer in writers for one in writer.result()}
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    records = {row["physicalOffset"]: row for row in rows_of(rows, "record", ["crc32OfRecord"])}
    messages = {row["physicalOffset"]: row for row in rows_of(rows, "msg")}
    for offset, one in acknowledged.items():
        assert records[offset] == one.record_row()
        if one.in_queue:
            assert messages[offset] == one.msg_row()
    for queue in rows_of(rows, "queue"):
        of_queue = [
            r["queueOffset"] for r in messages.values() if all(r[n] == queue[n] for n in ("topic", "queueId"))
        ]
        assert (queue["minOffset"], of_queue) == (0, list(range(queue["maxOffset"])))


@pytest.mark.parametrize("shape", ["clean", "mixed"])
def test_rocketmq_recovers_a_store_whose_writer_was_killed(rocketmq, shape, seed, rng, tmp_path):
    spec = spec_for_cystore(shape, seed)
    path = tmp_path / "store"
    acknowledged = killed_while_putting(path, spec, rng.randrange(100, 900))
    assert (path / "abort").exists()
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    assert rows_of(rows, "state") == [{"type": "state", "abort": True}]
    records = rows_of(rows, "record", ["crc32OfRecord"])
    assert records[: len(acknowledged)] == [one.record_row() for one in acknowledged]
    places = {one.physical_offset for one in acknowledged}
    found = [row for row in rows_of(rows, "msg") if row["physicalOffset"] in places]
    expected = [one.msg_row() for one in acknowledged if one.in_queue]
    assert found == sorted(expected, key=lambda r: (r["topic"], r["queueId"], r["queueOffset"]))
    # RocketMQ throws away young index files and does not build them again; what it does find holds the key.
    with cystore.open(path, **cystore_config(spec)) as store:
        ours = [(m.physical_offset, m.size_bytes, m.topic, m.queue_id, m.sys_flag) for m in store.scan()]
        assert ours == [
            tuple(r[n] for n in ("physicalOffset", "size", "topic", "queueId", "sysFlag")) for r in records
        ]
        for one in acknowledged[::20]:
            for key in one.index_keys:
                assert one.physical_offset in {
                    m.physical_offset for m in store.query(one.item["topic"], key, 10_000)
                }


def test_rocketmq_reads_a_log_whose_segments_ended_early(rocketmq, rng, monkeypatch, tmp_path):
    """A blank that fills most of a file, as `roll_interval_h` leaves it."""
    writer, spec = specs.Writer(rng), {"config": specs.SMALL}
    with cystore.open(tmp_path / "store", **cystore_config(spec)) as store:
        stored = []
        for hours in (25, 50):
            stored += put_all(store, list(writer.many(15)))
            turn(monkeypatch, hours * 3_600_000)
            assert store._attached().cleaner._roller.run_once()
            monkeypatch.undo()
        stored += put_all(store, list(writer.many(15)))
        store.dispatch()
    rows = dump_of_copy(rocketmq, tmp_path / "store", spec, tmp_path)
    check_records(rows, stored)
    check_queues(rows, stored)
    check_queries(rows, stored)


def test_rocketmq_reads_transactions(rocketmq, tmp_path):
    """Half messages and the notes that end them, as its broker looks for them; the committed message has its queue
    entry."""
    config = {**specs.SMALL}
    with cystore.open(tmp_path / "store", **cystore_config({"config": config})) as store:
        half = store.begin("T", b"one", queue_id=2, keys=("k1",), tags="TagA", producer_group="shop")
        store.begin("T", b"open")
        store.commit(half)
    rows = dump_of_copy(rocketmq, tmp_path / "store", {"config": config}, tmp_path)
    by_topic: dict[str, list[dict]] = {}
    for row in rows_of(rows, "msg"):
        by_topic.setdefault(row["topic"], []).append(row)
    first, second = by_topic[layout.HALF_TOPIC]
    assert first["properties"] == {
        "KEYS": "k1", "TAGS": "TagA", "UNIQ_KEY": half.id, "TRAN_MSG": "true", "PGROUP": "shop", "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }  # fmt: skip
    assert (first["sysFlag"], first["queueOffset"], second["queueOffset"]) == (0, 0, 1)
    (op,) = by_topic[layout.OP_TOPIC]
    assert (op["tags"], base64.b64decode(op["bodyB64"]), op["queueId"]) == ("d", b"0", 0)
    (message,) = by_topic["T"]
    assert (message["sysFlag"], message["queueId"], message["queueOffset"]) == (8, 2, 0)
    assert message["preparedTransactionOffset"] == half.physical_offset
    assert message["properties"] == {
        "KEYS": "k1",
        "TAGS": "TagA",
        "UNIQ_KEY": half.id,
        "PGROUP": "shop",
    }
