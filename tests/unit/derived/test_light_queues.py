"""Goal: a message that names light queues is in each of them, with queue offsets without gap and repeat (I2), whatever
reads, rebuilds, recovers or removes (I4); all else is refused before anything is written. Method: small stores, whose
light queues are compared with what was put."""

from __future__ import annotations

import operator
import shutil
import sys
import threading
from functools import partial

import pytest

import cystore
from cystore.cli.program import main
from tests.support.child import in_child
from tests.support.small_stores import open_small

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
A, B = "%LMQ%a", "%LMQ%b"


def named(*queues: str) -> dict[str, str]:
    return {"INNER_MULTI_DISPATCH": ",".join(queues)}


def bodies(store: cystore.MessageStore, topic: str) -> list[bytes]:
    found, at = [], 0
    while (got := store.get(topic, 0, at)).status is cystore.GetStatus.FOUND:
        found += [bytes(message.body) for message in got.messages]
        at = got.next_offset
    return found


def fill(store: cystore.MessageStore, count: int = 250) -> dict[str, list[bytes]]:
    """Messages of which every second one is in A, and every third one in B; what each queue has."""
    put: dict[str, list[bytes]] = {"T": [], A: [], B: []}
    for n in range(count):
        queues = [name for name, step in ((A, 2), (B, 3)) if n % step == 0]
        store.put("T", b"%d" % n, keys=f"k{n}", tags="x", properties=named(*queues) if queues else None)
        for name in ("T", *queues):
            put[name].append(b"%d" % n)
    return put


@pytest.mark.parametrize("record_format", ["cystore", "rocketmq"])
def test_a_message_is_in_its_light_queues(tmp_path, record_format):
    with open_small(tmp_path / "s", record_format=record_format, **LIGHT) as store:
        put = fill(store)
        assert {name: bodies(store, name) for name in put} == put
        assert [store.next_queue_offset(name, 0) for name in put] == [len(one) for one in put.values()]
        (third,) = store.get(A, 0, 3, 1).messages
        assert (third.topic, third.queue_offset, third.tags) == ("T", 6, "x")
        assert third.properties["INNER_MULTI_QUEUE_OFFSET"] == "3,2"
        assert [bytes(one.body) for one in store.get(A, 0, 0, 2, tags="x").messages] == [b"0", b"2"]
        assert store.offset_by_time(B, 0, third.store_timestamp_ms) in range(len(put[B]))
        assert store.topics()[A] == {0: (0, len(put[A]))}
    assert main(["verify", str(tmp_path / "s")]) == 0


def test_i2_a_message_may_come_directly_into_a_light_queue(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        assert store.put(A, b"0").queue_offset == 0
        store.put("T", b"1", properties=named(A))
        assert store.put(A, b"2").queue_offset == 2
        assert bodies(store, A) == [b"0", b"1", b"2"]


def test_messages_of_a_list_keep_their_order(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        messages = [
            cystore.Message(
                topic=(A if n % 4 == 3 else "T"), body=b"%d" % n, properties=named(A) if n % 4 < 2 else None
            )
            for n in range(40)
        ]
        results = store.put_many(messages)
        assert [bytes(store.read(one.physical_offset).body) for one in results] == [
            b"%d" % n for n in range(40)
        ]
        assert bodies(store, A) == [b"%d" % n for n in range(40) if n % 4 != 2]


def test_i2_i4_queues_come_back_after_close_rebuild_and_crash(tmp_path):
    path = tmp_path / "s"
    with open_small(path, **LIGHT) as store:
        put = fill(store, 150)
    for step in ("close", "rebuild", "crash"):
        if step == "rebuild":
            shutil.rmtree(path / "consumequeue")
            (path / "config" / "queueOffset.json").unlink()
        if step == "crash":
            shutil.rmtree(path / "consumequeue")
            (path / "config" / "queueOffset.json").unlink()
            (path / "abort").touch()
        with open_small(path) as store:  # the settings are the store's
            assert {name: bodies(store, name) for name in put} == put
            assert store.put("T", step.encode(), properties=named(B, A)).queue_offset == len(put["T"])
            for name in put:
                put[name].append(step.encode())
        assert main(["verify", str(path)]) == 0


def test_a_reader_finds_what_is_not_dispatched(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        put = fill(store, 60)
        with open_small(tmp_path / "s", read_only=True) as reader:
            assert {name: bodies(reader, name) for name in put} == put
        assert store.wait(A, 0, len(put[A]) - 1, timeout_s=0)


def test_a_damaged_queue_file_heals(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        put = fill(store, 60)
        store.dispatch()
    file = next((tmp_path / "s" / "consumequeue" / A / "0").iterdir())
    data = bytearray(file.read_bytes())
    data[100:140] = bytes(40)
    file.write_bytes(data)
    assert main(["verify", str(tmp_path / "s")]) == 1
    with open_small(tmp_path / "s") as store:
        assert bodies(store, A) == put[A]
    assert main(["verify", str(tmp_path / "s")]) == 0


def test_a_deleted_light_queue_continues_counting(tmp_path):
    path = tmp_path / "s"
    with open_small(path, **LIGHT) as store:
        put = fill(store, 60)
        store.delete_topic(A)
        assert bodies(store, A) == []
        assert not (path / "consumequeue" / A).exists()
        assert bodies(store, B) == put[B]
        store.put("T", b"on", properties=named(A))
        got = store.get(A, 0, len(put[A]))
        assert [bytes(one.body) for one in got.messages] == [b"on"]
    assert main(["verify", str(path)]) == 0


def test_a_consumer_of_a_light_queue(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        put = fill(store, 40)
        with store.consumer("G", [A, "T"]) as consumer:
            while given := consumer.poll(timeout_s=0):
                consumer.ack(*given)
            assert store.groups.offsets("G")[A, 0] == len(put[A])
            assert store.groups.offsets("G")["T", 0] == len(put["T"])
            store.put("T", b"again", properties=named(A))
            first, second = consumer.poll(timeout_s=60)
            assert consumer.retry(first, delay_level=-1)
            assert consumer.ack(first, second) == 1
        (dead,) = store.get("%DLQ%G", 0, 0).messages
        assert not {"INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"} & dead.properties.keys()
        assert store.next_queue_offset(A, 0) == len(put[A]) + 1


def test_an_acknowledgement_counts_in_one_queue(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store, store.consumer("G", ["T", A]) as consumer:
        for turn in (1, 2):
            store.put("T", b"", properties=named(A))
            given = [*consumer.poll(timeout_s=60)]
            while more := consumer.poll(timeout_s=0):
                given += more
            assert len(given) == 2
            for message in given[:: 1 if turn == 1 else -1]:
                assert (consumer.ack(message), consumer.ack(message)) == (1, 0)


def test_a_copied_message_gets_new_offsets(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        store.put("T", b"one", properties=named(A, B))
        stored = store.get("T", 0, 0).messages
        store.put_many(stored * 2)
        assert [m.properties["INNER_MULTI_QUEUE_OFFSET"] for m in store.scan()] == ["0,0", "1,1", "2,2"]
        with open_small(tmp_path / "other") as other:
            other.put_many(stored)
            assert "INNER_MULTI_QUEUE_OFFSET" not in other.get("T", 0, 0).messages[0].properties


NOT_PUT = {
    "no prefix": {"properties": named("a")},
    "the prefix alone": {"properties": named("%LMQ%")},
    "a letter": {"properties": named("%LMQ%ä")},
    "an empty name": {"properties": named(A, "", B)},
    "twice": {"properties": named(A, B, A)},
    "its own queue": {"topic": A, "properties": named(B, A)},
    "too many": {"properties": named(*(f"%LMQ%{n}" for n in range(257)))},
    "too long": {"properties": {**named(A), "x": "y" * 32_700}},
    "offsets": {"properties": {**named(A), "INNER_MULTI_QUEUE_OFFSET": "0"}},
    "delayed": {"properties": named(A), "delay_level": 1},
}


@pytest.mark.parametrize("wrong", NOT_PUT)
def test_what_is_refused(tmp_path, wrong):
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 17, **LIGHT) as store:
        put = {"topic": "T", "body": b"", **NOT_PUT[wrong]}
        with pytest.raises(cystore.MessageIllegalError, match="propert"):
            store.put(**put)
        with pytest.raises(cystore.MessageIllegalError, match="propert"):
            store.put_many([cystore.Message(**put)])
        assert (store.stats()["wrote"], store.topics()) == (0, {})


def test_batches_and_transactions_have_none(tmp_path):
    with open_small(tmp_path / "s", **LIGHT) as store:
        one = cystore.Message(topic="T", body=b"", properties=named(A))
        with pytest.raises(cystore.MessageIllegalError, match="a batch has no light queues"):
            store.put_many([one], batch=True)
        with pytest.raises(cystore.MessageIllegalError, match="prepared or rolled back"):
            store.put_many([cystore.Message(topic="T", body=b"", properties=named(A), sys_flag=4)])
        with pytest.raises(cystore.MessageIllegalError, match="transaction"):
            store.begin("T", b"", properties=named(A))
        assert store.stats()["wrote"] == 0


def test_a_store_has_a_limit(tmp_path):
    with open_small(tmp_path / "s", **LIGHT, max_lmq_consume_queue_num=3) as store:
        store.put("T", b"", properties=named(A, B))
        with pytest.raises(cystore.StoreFullError, match="max_lmq_consume_queue_num = 3"):
            store.put("T", b"", properties=named(A, "%LMQ%c", "%LMQ%d"))
        with pytest.raises(cystore.StoreFullError, match="the messages make 2 more"):
            store.put_many(
                [cystore.Message(topic="T", body=b"", properties=named(f"%LMQ%{n}")) for n in "cdcab"]
            )
        assert store.next_queue_offset("T", 0) == 1
        store.put_many(
            [cystore.Message(topic="T", body=b"", properties=named("%LMQ%c", A)) for _ in range(3)]
        )
        with pytest.raises(cystore.StoreFullError):
            store.put("T", b"", properties=named("%LMQ%d"))
        store.delete_topic(B)
        store.put("T", b"", properties=named("%LMQ%d"))
        assert [store.next_queue_offset(f"%LMQ%{name}", 0) for name in "abcd"] == [4, 1, 3, 1]


def test_without_the_settings_the_property_is_any_other(tmp_path):
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"", properties=named("any text", A))
        assert list(store.topics()) == ["T"]
        with pytest.raises(cystore.StoreConfigError, match="enable_lmq"):
            open_small(path, **LIGHT)
    with pytest.raises(cystore.StoreConfigError, match="light queues need both"):
        open_small(tmp_path / "other", enable_lmq=True)
    with pytest.raises(cystore.StoreConfigError, match="need both"):
        open_small(tmp_path / "other", enable_multi_dispatch=True)
    assert main(["config", str(path), "--set", "enable_lmq=true"]) == 2
    assert main(["config", str(path), "--set", "enable_lmq=true", "--set", "enable_multi_dispatch=true"]) == 0
    with open_small(path) as store:
        store.put("T", b"", properties=named(A))
        assert list(store.topics()) == [A, "T"]


def test_a_store_that_closes_behind_the_checks_of_a_batch(tmp_path):
    """The process crashed when another thread closed the store between two checks of the messages."""

    def put_while_it_closes(number: int) -> None:
        store = open_small(tmp_path / f"s{number}", **LIGHT)
        batch = [cystore.Message(topic="T", body=b"", properties=named(A))] * 250
        begun, closing = threading.Lock(), store._attached().appender.detach
        begun.acquire()
        # No Python code runs between the steps of a `map`, so the store closes when the put gives the interpreter away.
        steps = begun.acquire, closing
        closer = threading.Thread(target=lambda: list(map(operator.call, steps)))
        closer.start()
        try:
            list(map(operator.call, (begun.release, partial(store.put_many, batch))))
        except cystore.StoreClosedError:
            pass
        closer.join()
        store.close()

    def put_often() -> None:
        sys.setswitchinterval(1e-9)  # of the child: a thread gets the interpreter as soon as it is given away
        for number in range(10):
            put_while_it_closes(number)

    assert in_child(put_often) == 0
