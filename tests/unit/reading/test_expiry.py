"""Goal: no read by queue or key returns a message whose time is over; queues, log and other messages are as without
it. Method: messages with times before and behind now, by every way to put and to read; killed processes, delays,
transactions."""

from __future__ import annotations

import pickle
import signal

import pytest

import cystore
from cystore.clock import now_ms
from cystore.errors import MessageIllegalError
from cystore.layout import CONSTANTS
from cystore.results import GetStatus
from tests.support.process import Process
from tests.support.small_stores import open_small

EXPIRES = CONSTANTS["SYS_FLAG_EXPIRES"][0]
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "s", record_format="cystore") as store:
        yield store


def bodies(messages):
    return [bytes(message.body) for message in messages]


def past():
    return now_ms() - 1


def future():
    return now_ms() + HOUR_MS


def fill(store):
    store.put("T", b"gone", keys=("k",), tags="A", expires_at_ms=past())
    store.put("T", b"later", keys=("k",), tags="A", expires_at_ms=future())
    store.put("T", b"ever", keys=("k",), tags="B")
    message = cystore.Message(topic="T", body=b"gone too", keys=("k",), expires_at_ms=past())
    store.put_many(
        [message, cystore.Message(topic="T", body=b"last", properties={"EXPIRES_AT_MS": str(future())})]
    )


def check(store):
    found = store.get("T", 0, 0)
    assert (found.status, bodies(found.messages), found.next_offset) == (
        GetStatus.FOUND,
        [b"later", b"ever", b"last"],
        5,
    )
    assert [message.queue_offset for message in found.messages] == [1, 2, 4]
    assert len(store.get("T", 0, 0, raw=True).record_offsets) == 3
    only = store.get("T", 0, 3, 1)
    assert bodies(only.messages) == [b"last"]
    assert bodies(store.get("T", 0, 0, tags="A").messages) == [b"later"]
    assert bodies(store.get("T", 0, 0, filter="TAGS = 'A' OR TAGS = 'B'").messages) == [b"later", b"ever"]
    assert bodies(store.get("T", 0, 0, filter=lambda message: True).messages) == [b"later", b"ever", b"last"]
    assert bodies(store.query("T", "k")) == [b"ever", b"later"]
    assert bodies(store.query("T", "k", 1, begin_ms=0, end_ms=1 << 50)) == [b"ever"]
    assert {key: bodies(found) for key, found in store.query_many("T", ["k", "x"]).items()} == {
        "k": [b"ever", b"later"],
        "x": [],
    }
    # The log itself shows all of it.
    assert bodies(store.scan()) == [b"gone", b"later", b"ever", b"gone too", b"last"]
    assert bytes(store.read(0).body) == b"gone"


def test_reads_leave_out_what_has_expired(store):
    fill(store)
    check(store)
    store.dispatch()
    check(store)


def test_it_holds_for_other_processes_and_after_a_kill(tmp_path):
    with Process() as other:
        other.do(
            "import cystore; from cystore.clock import now_ms; store = cystore.open(path)",
            path=str(tmp_path / "s"),
        )
        for expires in (past(), future()):
            other.do("store.put('T', b'x', keys=('k',), expires_at_ms=at).queue_offset", at=expires)
        with cystore.open(tmp_path / "s", read_only=True) as reader:
            assert len(reader.get("T", 0, 0).messages) == len(reader.query("T", "k")) == 1
        other.signal(signal.SIGKILL)
    for _ in range(2):
        with cystore.open(tmp_path / "s") as store:
            found = store.get("T", 0, 0)
            assert (len(found.messages), found.next_offset) == (1, 2)
            assert len(store.query("T", "k")) == 1


def test_a_reader_alone_and_one_beside_a_writer_that_does_not_dispatch(tmp_path):
    with open_small(tmp_path / "s") as store, store._parts.control.held("dispatch"):
        fill(store)
        with cystore.open(tmp_path / "s", read_only=True) as reader:
            check(reader)
    with cystore.open(tmp_path / "s", read_only=True) as reader:
        check(reader)


def test_a_key_that_is_no_text_of_this_encoding(tmp_path):
    with open_small(tmp_path / "s") as store, store._parts.control.held("dispatch"):
        store.put("T", b"gone", keys=("k\ufffd",), expires_at_ms=past())
        store.put("T", b"stays", keys=("k\ufffd",), expires_at_ms=future())
        assert bodies(store.query("T", "k\ufffd")) == [b"stays"]


def test_a_queue_of_expired_messages_moves_on(store):
    for _ in range(1000):
        store.put("T", b"", expires_at_ms=past())
    at, looks = 0, 0
    while at < 1000:
        found = store.get("T", 0, at)
        assert (found.status, found.messages) == (GetStatus.NO_MATCHED_MESSAGE, [])
        assert found.next_offset > at
        at, looks = found.next_offset, looks + 1
    assert looks <= 20
    store.put("T", b"new")
    assert bodies(store.groups.pull("team", "T", 0).messages) == [b"new"]
    with store.consumer("other", "T") as consumer:
        (message,) = consumer.poll(timeout_s=30)
        assert bytes(message.body) == b"new"
        assert store.groups.lag("other")[-1].lag == 1


def test_the_stores_clock_decides(store, monkeypatch):
    place = store.put("T", b"soon", keys=("k",), expires_at_ms=now_ms() + 2_000)
    assert store.get("T", 0, 0).messages and store.query("T", "k")
    assert not store.wait("T", 0, 1, 2.1)
    assert not store.get("T", 0, 0).messages and not store.query("T", "k")
    assert store.read(place.physical_offset).expires_at_ms < now_ms()


def test_a_delayed_message_and_one_of_a_transaction_keep_their_time(tmp_path):
    with open_small(tmp_path / "s", message_delay_level="1s") as store:
        store.put("T", b"gone", delay_level=1, expires_at_ms=past())
        store.put("T", b"later", delay_level=1, expires_at_ms=future())
        while store.next_queue_offset("T", 0) < 2:
            store.wait("none", 0, 0, 0.1)
            store.deliver()
        assert bodies(store.get("T", 0, 0).messages) == [b"later"]
        for at in (past(), future()):
            store.commit(store.begin("U", b"%d" % at, properties={"EXPIRES_AT_MS": str(at)}))
        assert store.next_queue_offset("U", 0) == 2
        assert [one.queue_offset for one in store.get("U", 0, 0).messages] == [1]


def test_the_record(store):
    at = future()
    store.put("T", b"1", expires_at_ms=at, keys=("k",), properties={"p": "v"})
    store.put("T", b"2")
    first, second = store.scan()
    assert (first.expires_at_ms, second.expires_at_ms) == (at, None)
    assert first.properties == {"KEYS": "k", "p": "v", "EXPIRES_AT_MS": str(at)}
    assert (first.sys_flag, second.sys_flag) == (EXPIRES, 0)
    given = cystore.Message(topic="T", body=b"", expires_at_ms=at)
    assert pickle.loads(pickle.dumps(given)).expires_at_ms == given.expires_at_ms == at
    assert pickle.loads(pickle.dumps(first)).expires_at_ms == at
    # The bit alone, as another program might set it, means nothing.
    store.put_many([cystore.Message(topic="T", body=b"3", sys_flag=EXPIRES)])
    assert bodies(store.get("T", 0, 2).messages) == [b"3"]


@pytest.mark.parametrize("wrong", [0, -1, "1", 1.5, True, 10**17, None, b"1"])
def test_a_time_that_is_none(store, wrong):
    if wrong is not None:
        with pytest.raises(MessageIllegalError, match="expires_at_ms"):
            store.put("T", b"", expires_at_ms=wrong)
        with pytest.raises(MessageIllegalError, match="expires_at_ms"):
            cystore.Message(topic="T", body=b"", expires_at_ms=wrong)
    for text in (None if wrong == "1" else wrong, "", "0", "x", "-1", "1.5", "\u0661", "1" * 18):
        with pytest.raises(MessageIllegalError, match="EXPIRES_AT_MS"):
            store.put("T", b"", properties={"EXPIRES_AT_MS": text})
    assert store.wrote_position == 0


def test_properties_that_are_too_long_with_it(store):
    with pytest.raises(MessageIllegalError, match="expires_at_ms included"):
        store.put("T", b"", properties={"p": "x" * 32_760}, expires_at_ms=future())
