"""Goal: of all puts with a key, in a window, one message comes, and every put gives its place. Method: threads,
processes, children, keys that others use too, cleaned and damaged messages, locks that somebody keeps."""

from __future__ import annotations

import threading

import pytest

import cystore
from cystore import clock
from cystore.errors import (
    FlushFailedError,
    MessageIllegalError,
    StoreClosedError,
    StoreConfigError,
    StoreNotWritableError,
    StoreTimeoutError,
)
from cystore.system.key_lock import NameLocks
from tests.support.child import in_child
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, open_small

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        yield store


def bodies(store, topic="orders"):
    return [bytes(message.body) for message in store.scan() if message.topic == topic]


def once(store, body=b"1", key="k", window_ms=HOUR_MS, **more):
    return store.put_once("orders", body, dedup_key=key, window_ms=window_ms, **more)


def test_the_second_put_gives_the_place_of_the_first(store):
    first = once(store, b"1", queue_id=3, keys=("a", "b"), tags="T", properties={"p": "v"}, flag=7)
    second = once(store, b"2", queue_id=4)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.place == second.place
    message = store.read(first.place.physical_offset)
    assert (bytes(message.body), message.queue_id, message.flag, message.tags) == (b"1", 3, 7, "T")
    assert (message.unique_key, message.keys, message.properties["p"]) == ("k", ("a", "b"), "v")
    assert once(store, b"3", key="other").is_new
    assert store.put_once(
        "bills", b"1", dedup_key="k", window_ms=HOUR_MS
    ).is_new  # a key belongs to its topic
    assert [bytes(one.body) for one in store.query("orders", "k")] == [b"1"]


def test_put_takes_a_key_and_gives_the_place_alone(tmp_path):
    with cystore.open(tmp_path / "s", dedup_window_ms=HOUR_MS) as store:
        first = store.put("orders", b"1", dedup_key="k", tags="T", expires_at_ms=1 << 45, flush="sync")
        assert store.put("orders", b"2", dedup_key="k") == first
        assert once(store) == (first, False)
        assert (bodies(store), store.read(first.physical_offset).tags) == ([b"1"], "T")
        with pytest.raises(MessageIllegalError, match="neither unique_key nor delay_level"):
            store.put("orders", b"3", dedup_key="k", unique_key="k")
        with pytest.raises(MessageIllegalError, match="neither unique_key nor delay_level"):
            store.put("orders", b"3", dedup_key="k", delay_level=1)
        late = store.put("orders", b"3", dedup_key="late", delay_ms=HOUR_MS)
        assert store.put("orders", b"4", dedup_key="late") == late
        with pytest.raises(TypeError, match="no_such"):
            store.put("orders", b"3", no_such=1)
    with pytest.raises(StoreClosedError):
        store.put("orders", b"3", dedup_key="k")


def test_put_looks_back_for_the_window_of_the_settings(tmp_path):
    with cystore.open(tmp_path / "s", dedup_window_ms=1) as store:
        first = store.put("orders", b"1", dedup_key="k")
        while clock.now_ms() <= first.store_timestamp_ms + 1:
            store.put("other", b"", flush="sync")  # takes a while
        assert store.put("orders", b"2", dedup_key="k") != first


@pytest.mark.parametrize("key", ["k", "k\N{REPLACEMENT CHARACTER}"])
@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize("end", ["expired", "its topic was deleted"])
def test_a_message_that_no_reader_gets_does_not_count(tmp_path, key, dispatched, end):
    expires = {"properties": {"EXPIRES_AT_MS": "1"}} if end == "expired" else {}
    with cystore.open(tmp_path / "s", services="none") as store:
        assert once(store, key=key, **expires).is_new
        if dispatched:
            store.dispatch()
        if end != "expired":
            store.delete_topic("orders")
        second = once(store, b"2", key=key)
        assert second.is_new
        assert once(store, b"3", key=key) == (second.place, False)
        found = store.get("orders", 0, second.place.queue_offset).messages
        assert [bytes(message.body) for message in found] == [b"2"]


def test_the_oldest_message_that_readers_get_counts(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        store.put("orders", b"1", unique_key="k", expires_at_ms=1)
        place = store.put("orders", b"2", unique_key="k")
        store.put("orders", b"3", unique_key="k")
        assert once(store, b"4") == (place, False)
        assert store.put("orders", b"4", dedup_key="k") == place


def test_a_topic_that_is_deleted_in_another_process_counts_at_once(tmp_path, store):
    with Process() as other:
        other.do("import cystore; store = cystore.open(path)", path=str(store.path))
        for number in range(3):
            assert once(store, b"%d" % number).is_new
            other.do("len(store.topics()), store.delete_topic('orders')")
        assert store.topics().get("orders") is None


def test_text_with_a_lone_surrogate_is_refused(store):
    for topic, key in (("orders", "\ud800"), ("\ud800", "k")):
        with pytest.raises(MessageIllegalError, match="not valid Unicode"):
            store.put_once(topic, b"", dedup_key=key, window_ms=HOUR_MS)


def test_a_window_ends(store, monkeypatch):
    first = once(store)
    now_ms = first.place.store_timestamp_ms
    monkeypatch.setattr("cystore.once.puts.clock.now_ms", lambda *_: now_ms + 999)
    assert not once(store, window_ms=1000).is_new
    monkeypatch.setattr("cystore.once.puts.clock.now_ms", lambda *_: now_ms + 1001)
    assert once(store, window_ms=1000).is_new
    monkeypatch.setattr("cystore.once.puts.clock.now_ms", lambda *_: now_ms - HOUR_MS)  # it was set back
    assert not once(store, window_ms=1000).is_new


def test_a_key_of_another_message_is_not_it(store):
    for number in range(100):
        store.put("orders", b"%d" % number, keys=("k",))
    assert once(store).is_new
    assert not once(store).is_new
    store.put("orders", b"x", unique_key="theirs")
    assert not once(store, key="theirs").is_new


def test_what_is_not_dispatched_counts(tmp_path):
    with open_small(tmp_path / "s") as store, store._parts.control.held("dispatch"):
        assert once(store).is_new
        assert not once(store).is_new


def test_many_threads_and_handles_put_one_message_a_key(tmp_path):
    with cystore.open(tmp_path / "s") as one, cystore.open(tmp_path / "s") as two:
        places: dict[int, set[int]] = {number: set() for number in range(50)}

        def put(store):
            for number in places:
                found = once(store, b"%d" % number, key=f"k{number}")
                places[number].add(found.place.physical_offset)

        threads = [threading.Thread(target=put, args=((one, two)[number % 2],)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(len(found) == 1 for found in places.values())
        assert sorted(bodies(one)) == sorted(b"%d" % number for number in places)


def test_processes_and_children_put_one_message(tmp_path, store):
    first = once(store)
    with Process() as other:
        other.do("import cystore; store = cystore.open(path)", path=str(store.path))
        answer = "tuple(store.put_once('orders', b'2', dedup_key=key, window_ms=10**6))[1]"
        assert other.do(answer, key="k") is False
        assert other.do(answer, key="new") is True

    def child():
        assert once(store, b"3") == (first.place, False)
        assert once(store, b"3", key="of-the-child").is_new

    assert in_child(child) == 0
    assert not once(store, key="new").is_new
    assert not once(store, key="of-the-child").is_new
    assert bodies(store) == [b"1", b"2", b"3"]


def test_a_sync_put_waits_for_the_message_of_another_call(tmp_path):
    with open_small(tmp_path / "s") as store:
        first = once(store, flush="async")
        assert store._parts.control.flushed == 0
        assert not once(store, flush="sync").is_new
        assert store._parts.control.flushed >= first.place.size_bytes
    with open_small(tmp_path / "t", flush_disk_type="sync") as store:
        once(store)
        assert store._parts.control.flushed > 0


def test_an_error_of_the_flush_has_the_place(tmp_path, monkeypatch):
    with open_small(tmp_path / "s") as store:
        first = once(store)

        def fail(end, flush):
            raise FlushFailedError("no")

        monkeypatch.setattr(store._parts.appender.policy, "reach", fail)
        with pytest.raises(FlushFailedError) as raised:
            once(store, flush="sync")
        assert raised.value.results == [first.place]


def test_a_cleaned_message_is_not_found_any_more(tmp_path):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        once(store)
        for _ in range(10):
            store.put("bills", bytes(LOG_BYTES // 3))
        assert store.clean().min_physical_offset > 0
        assert once(store).is_new


def test_a_damaged_message_is_not_found_any_more(store):
    place = once(store).place
    store.dispatch()
    with open(next((store.path / "commitlog").glob("0*")), "r+b") as file:
        file.seek(place.physical_offset + place.size_bytes - 3)
        file.write(b"\xff\xff")
    assert once(store).is_new


def test_a_message_in_a_damaged_range_is_not_found_any_more(tmp_path):
    with open_small(tmp_path / "s") as store:
        place = once(store).place
        store.put("bills", b"x")
    with open(next((tmp_path / "s/commitlog").glob("0*")), "r+b") as file:
        file.seek(place.physical_offset + place.size_bytes - 3)
        file.write(b"\xff\xff")
    rebuilt = tmp_path / "s/index"
    for file in rebuilt.iterdir():
        file.unlink()
    for name in ("abort", "checkpoint"):
        (tmp_path / "s" / name).unlink(missing_ok=True)
    with open_small(tmp_path / "s") as store:
        assert once(store).is_new
        assert not once(store).is_new


def test_a_lock_that_somebody_keeps(store):
    once(store)
    with NameLocks(store.path / "config" / "once.lock").held("orders k", 1):
        with pytest.raises(StoreTimeoutError, match=r"has had the lock of 'orders k' for 0\.02 s"):
            once(store, busy_timeout_ms=20)
        assert once(store, key="another").is_new
    assert not once(store).is_new


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ""}, {"key": None}, {"key": "a\x01b"}, {"key": "x" * 40_000}, {"window_ms": 0}, {"window_ms": "1"},
        {"window_ms": None}, {"flush": "often"}, {"busy_timeout_ms": -1}, {"body": "text"}, {"queue_id": -1},
    ],
)  # fmt: skip
def test_wrong_arguments(store, wrong):
    with pytest.raises(MessageIllegalError):
        once(store, **wrong)
    assert store.wrote_position == 0


def test_stores_that_cannot(tmp_path):
    with open_small(tmp_path / "s", message_index_enable=False) as store:
        with pytest.raises(StoreConfigError, match="has no index"):
            once(store)
        with (
            cystore.open(tmp_path / "s", read_only=True) as reader,
            pytest.raises(StoreNotWritableError),
        ):
            once(reader)
