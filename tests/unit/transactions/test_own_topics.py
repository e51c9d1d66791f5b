"""Goal: topics and groups that the store writes for itself are closed to programs in every call, and stay open to the
store. Method: each call with each topic of the table; records as RocketMQ and earlier versions left them."""

from __future__ import annotations

import pytest

from cystore import Message, MessageIllegalError, StoreConfigError
from cystore._native.record.message import due_message
from cystore.cli.program import main
from cystore.layout import HALF_TOPIC, OP_TOPIC, OWN_GROUPS, OWN_TOPICS, SCHEDULE_TOPIC
from tests.support.clock import turn
from tests.support.small_stores import open_small, put_own

PUTS = {
    "put": lambda store, topic: store.put(topic, b"x"),
    "put of queue 1": lambda store, topic: store.put(topic, b"x", queue_id=1),
    "put with all options": lambda store, topic: store.put(
        topic, b"x", properties={"a": "b"}, unique_key="u"
    ),
    "put delayed": lambda store, topic: store.put(topic, b"x", delay_level=1),
    "put once": lambda store, topic: store.put_once(topic, b"x", dedup_key="k", window_ms=1000),
    "put_many": lambda store, topic: store.put_many(
        [Message(topic="T", body=b"y"), Message(topic=topic, body=b"x")]
    ),
    "put_many delayed": lambda store, topic: store.put_many([Message(topic=topic, body=b"x", delay_level=1)]),
    "batch": lambda store, topic: store.put_many([Message(topic=topic, body=b"x")], batch=True),
    "begin": lambda store, topic: store.begin(topic, b"x"),
}


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "s", message_delay_level="1s") as opened:
        opened.put("T", b"delayed", delay_level=1)
        opened.rollback(opened.begin("T", b"half"))
        yield opened


@pytest.mark.parametrize("topic", OWN_TOPICS)
@pytest.mark.parametrize("call", PUTS.values(), ids=PUTS)
def test_no_call_puts_to_a_topic_of_the_store(store, topic, call):
    """Seen: a put into the topic of ends ended a stranger's transaction."""
    wrote = store.wrote_position
    with pytest.raises(MessageIllegalError, match=f"{topic} is reserved for messages of the store: it"):
        call(store, topic)
    assert store.wrote_position == wrote


@pytest.mark.parametrize("topic", OWN_TOPICS)
def test_a_topic_of_the_store_is_not_deleted_and_has_no_consumers(store, topic, tmp_path):
    """Seen: the deletion of half messages forgot all open transactions without a word."""
    for call in (store.delete_topic, lambda topic: store.consumer("g", ["T", topic])):
        with pytest.raises(StoreConfigError, match=f"{topic} is reserved for messages of the store"):
            call(topic)
    before = store.topics()
    assert main(["topics", "delete", str(tmp_path / "s"), topic]) == 2
    assert store.topics() == before


def test_stored_messages_of_these_topics_are_not_put_by_programs(store, tmp_path):
    """Seen: copies of another store's ends ended the transactions of this one."""
    with open_small(tmp_path / "other") as other:
        half = other.begin("T", b"open")
        other.put("T", b"plain")
        copies = list(store.scan())
        assert {HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC} <= {one.topic for one in copies}
        for copy in copies:
            with pytest.raises(MessageIllegalError, match="is reserved for messages of the store"):
                other.put_many([copy])
        other.put_many(list(other.get("T", 0, 0).messages))
        assert other.open_transactions() == [half]


@pytest.mark.parametrize("group", OWN_GROUPS)
def test_no_call_moves_a_group_of_the_store(store, group):
    """Seen: after a reset of the group to the end, each open transaction was forgotten."""
    half = store.begin("T", b"open")
    for call in (
        lambda: store.groups.commit(group, HALF_TOPIC, 0, 1),
        lambda: store.groups.reset(group, HALF_TOPIC, "last"),
        lambda: store.groups.remove(group),
        lambda: store.consumer(group, "T"),
    ):
        with pytest.raises(StoreConfigError, match=f"the offsets of {group} are notes of the store"):
            call()
    assert store.open_transactions() == [half]


def test_readers_retries_and_dead_letters_stay_open_to_programs(store):
    assert store.get(HALF_TOPIC, 0, 0).messages and store.get(OP_TOPIC, 0, 0).messages
    for topic in (
        "%RETRY%g",
        "%DLQ%g",
        "%LMQ%x",
        "SCHEDULE_TOPIC_XXXY",
        "RMQ_SYS_TRANS_HALF_TOPID",
        OP_TOPIC.lower(),
    ):
        store.put(topic, b"x")
        store.put(topic, b"x", properties={"a": "b"})
        assert store.delete_topic(topic).queues == 1


def test_a_waiting_message_does_not_get_into_a_topic_of_the_store(tmp_path, monkeypatch):
    """An earlier version let a program put a delayed message for the topic of ends."""
    with open_small(
        tmp_path / "s", message_delay_level="1s", services="none", transaction_timeout_ms=0
    ) as store:
        half = store.begin("T", b"open")
        properties = {"DELAY": "1", "REAL_TOPIC": OP_TOPIC, "REAL_QID": "0"}
        stored = b"\x02".join(
            [f"{name}\x01{value}".encode() for name, value in properties.items()] + [b"TAGS\x01d"]
        )
        source = store.read(store.put("T", b"0").physical_offset)
        put_own(store, due_message(source, SCHEDULE_TOPIC, 0, stored))
        turn(monkeypatch, 5_000)
        store.deliver()
        assert store.open_transactions() == [half]
        assert store.get(OP_TOPIC, 0, 0).messages == []
