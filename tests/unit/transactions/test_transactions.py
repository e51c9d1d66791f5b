"""Goal: a half message is seen by nobody until its commit, which puts it once, whoever asks for it and how often;
records are those of RocketMQ. Method: one handle, several processes that end the same transactions at once, and
stores whose half messages are old or gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import cystore
from cystore import GetStatus, HalfMessage, Message, MessageIllegalError, TransactionError
from cystore._native.record.message import due_message
from cystore.layout import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, OWN_TOPICS
from cystore.transactions.table import GROUP, OPS_IN_RUN
from cystore.transactions.transactions import Transactions
from tests.support.process import Process
from tests.support.small_stores import put_own

AT_ONCE = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 0}


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "store", **AT_ONCE) as opened:
        yield opened


def bodies(store, topic="orders", queue_id=0):
    return [bytes(message.body) for message in store.get(topic, queue_id, 0, 32).messages]


def test_nobody_sees_a_half_message_before_its_commit(store):
    half = store.begin("orders", b"one", queue_id=3, keys=("k",), tags="t", properties={"a": "b"}, flag=7)
    assert store.get("orders", 3, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.query("orders", "k") == []
    assert store.open_transactions() == [half]
    put = store.commit(half)
    (message,) = store.get("orders", 3, 0).messages
    assert (message.physical_offset, message.queue_offset) == (put.physical_offset, 0)
    assert (bytes(message.body), message.tags, message.keys, message.flag) == (b"one", "t", ("k",), 7)
    assert dict(message.properties) == {
        "KEYS": "k", "TAGS": "t", "a": "b", "UNIQ_KEY": half.id, "PGROUP": "cystore"
    }  # fmt: skip
    assert [found.physical_offset for found in store.query("orders", "k")] == [put.physical_offset]
    assert store.open_transactions() == []


def test_the_records_are_those_of_rocketmq(store):
    half = store.begin("orders", b"one", queue_id=3, producer_group="shop")
    (prepared,) = store.get(HALF_TOPIC, 0, 0).messages
    assert dict(prepared.properties) == {
        "TRAN_MSG": "true", "PGROUP": "shop", "REAL_TOPIC": "orders", "REAL_QID": "3", "UNIQ_KEY": half.id
    }  # fmt: skip
    assert (prepared.sys_flag, prepared.queue_offset, prepared.physical_offset) == (
        0, half.queue_offset, half.physical_offset
    )  # fmt: skip
    store.commit(half)
    (op,) = store.get(OP_TOPIC, 0, 0).messages
    assert (bytes(op.body), op.tags) == (b"0", "d")
    (message,) = store.get("orders", 3, 0).messages
    assert (message.sys_flag, message.prepared_transaction_offset) == (8, half.physical_offset)
    assert message.born_timestamp_ms == prepared.born_timestamp_ms
    assert op.physical_offset == message.physical_offset + message.size_bytes


@pytest.mark.parametrize("first", ["commit", "rollback"])
@pytest.mark.parametrize("second", ["commit", "rollback"])
def test_a_second_end_is_an_error_that_names_the_first(store, first, second):
    half = store.begin("orders", b"one")
    getattr(store, first)(half)
    wrote = store.wrote_position
    what = {"commit": "it was committed", "rollback": "it was rolled back"}[first]
    with pytest.raises(TransactionError, match=f"transaction {half.id}: {what}"):
        getattr(store, second)(half)
    assert store.wrote_position == wrote
    assert bodies(store) == ([b"one"] if first == "commit" else [])


def test_an_unknown_transaction_and_what_is_none(store):
    with pytest.raises(TransactionError, match="transaction nope: the store knows no open transaction"):
        store.commit("nope")
    for bad in (3, None, b"x"):
        with pytest.raises(TransactionError, match="half: must be text"):
            store.rollback(bad)


def test_a_handle_goes_to_another_process_which_ends_it(tmp_path):
    with cystore.open(tmp_path / "store") as store, Process() as other:
        half = store.begin("orders", b"one")
        assert pickle.loads(pickle.dumps(half)) == half and isinstance(half, HalfMessage)
        other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "store"))
        other.do("store.commit(id)", id=half.id)
        assert bodies(store) == [b"one"]
        with pytest.raises(TransactionError, match="it was committed"):
            store.rollback(half)


def test_of_many_that_end_one_transaction_at_once_one_succeeds(tmp_path):
    with cystore.open(tmp_path / "store") as store, cystore.open(tmp_path / "store") as second:
        halves = [store.begin("orders", b"%d" % number) for number in range(60)]

        def end(number):
            done = []
            for half in halves:
                try:
                    if number % 3:
                        (store, second)[number % 2].commit(half)
                        done.append(half.id)
                    else:
                        (store, second)[number % 2].rollback(half)
                except TransactionError:
                    continue
            return done

        with ThreadPoolExecutor(6) as pool:
            committed = [transaction for ids in pool.map(end, range(6)) for transaction in ids]
        assert len(set(committed)) == len(committed)
        found = list(store.scan())
        assert sorted(m.unique_key for m in found if m.topic == "orders") == sorted(committed)
        assert len([m for m in found if m.topic == OP_TOPIC]) == len(halves)
        assert store.open_transactions() == []


def test_a_check_decides_or_asks_again_and_discards_at_last(tmp_path):
    with cystore.open(tmp_path / "store", **AT_ONCE, transaction_check_max=2) as store:
        halves = {name: store.begin("orders", name.encode()) for name in ("yes", "no", "unknown", "fails")}

        def check(half, message):
            name = bytes(message.body).decode()
            if name == "fails":
                raise RuntimeError("the database is away")
            return {"yes": "commit", "no": "rollback", "unknown": None}[name]

        assert store.check_transactions(check) == (1, 1, 2, 0, 1)
        assert bodies(store) == [b"yes"]
        left = store.open_transactions()
        assert [half.id for half in left] == [halves["unknown"].id, halves["fails"].id]
        assert left[0].queue_offset > halves["unknown"].queue_offset
        assert store.check_transactions(check) == (0, 0, 2, 0, 1)
        assert store.check_transactions(check) == (0, 0, 0, 2, 0)
        assert bodies(store, DISCARDED_TOPIC) == [b"unknown", b"fails"]
        assert store.open_transactions() == []
        with pytest.raises(TransactionError, match="it was discarded after too many checks"):
            store.commit(halves["unknown"])


def test_a_transaction_that_was_asked_about_is_ended_by_its_first_handle(store):
    half = store.begin("orders", b"one")
    store.check_transactions(lambda half, message: None)
    store.commit(half)
    assert bodies(store) == [b"one"] and store.open_transactions() == []


def test_young_transactions_are_not_asked_about(tmp_path):
    with cystore.open(tmp_path / "store", transaction_timeout_ms=3_600_000) as store:
        half = store.begin("orders", b"one")
        assert store.check_transactions(lambda half, message: pytest.fail("asked")) == (0, 0, 0, 0, 0)
        assert store.open_transactions(older_than_ms=3_600_000) == []
        assert store.open_transactions() == [half]


@pytest.mark.parametrize("answer", ["yes", True, 1])
def test_a_wrong_answer_ends_nothing(store, answer):
    half = store.begin("orders", b"one")
    with pytest.raises(TransactionError, match="check must give 'commit', 'rollback' or None"):
        store.check_transactions(lambda half, message: answer)
    assert store.open_transactions() == [half]
    assert "check must give" in store.set_aside_transactions()[half]
    with pytest.raises(cystore.StoreConfigError, match="check: must be a function"):
        store.check_transactions(answer)


def test_a_new_table_begins_where_transactions_may_be_open(tmp_path):
    with cystore.open(tmp_path / "store", **AT_ONCE) as store:
        for number in range(40):
            half = store.begin("orders", b"%d" % number)
            if number != 30:
                store.commit(half)
        store.check_transactions(lambda half, message: None if bytes(message.body) == b"30" else "commit")
        offsets = store.groups.offsets(GROUP)
        assert offsets[HALF_TOPIC, 0] == 40 and offsets[OP_TOPIC, 0] >= 39
    with cystore.open(tmp_path / "store", **AT_ONCE) as store:
        (left,) = store.open_transactions()
        store.commit(left)
        assert store.open_transactions() == []


def test_rocketmqs_own_half_and_op_messages_are_understood(store):
    """Halves without a unique key, op messages without a key, as a broker of version 4.9.3 writes them."""
    for name in ("a", "b"):
        half = store.begin("orders", name.encode())
        assert store.open_transactions()[-1] == half
    put_own(store, Message(topic=OP_TOPIC, body=b"0", tags="d", unique_key="7F00"))
    put_own(store, Message(topic=OP_TOPIC, body=b"no number", tags="d"))
    put_own(store, Message(topic=OP_TOPIC, body=b"1", tags="x"))
    (left,) = store.open_transactions()
    assert left.id == half.id
    put_own(store, Message(topic=HALF_TOPIC, body=b"names no topic"))
    assert store.open_transactions() == [half]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"topic": "a b"}, "topic: 'a b' must be 1 to 127"), ({"topic": ""}, "topic"), ({"topic": 3}, "topic"),
        ({"topic": "t" * 128}, "topic"), ({"topic": HALF_TOPIC}, "reserved for messages of the store"),
        ({"body": "text"}, "body"),
        ({"body": b"x" * 2_000}, "body: 2000 bytes, at most max_message_size_bytes = 1000"),
        ({"properties": {"REAL_TOPIC": "x"}}, "properties: REAL_TOPIC is reserved"),
        ({"properties": {"a": "x" * 32_760}}, "properties"),
        ({"keys": ("a b",)}, "keys"), ({"queue_id": -1}, "queue_id"), ({"flush": "now"}, "flush"),
        ({"producer_group": "a b"}, "group"),
    ],
)  # fmt: skip
def test_what_cannot_be_put_cannot_be_begun(tmp_path, arguments, what):
    with cystore.open(tmp_path / "store", max_message_size_bytes=1_000) as store:
        with pytest.raises((MessageIllegalError, cystore.StoreConfigError), match=what):
            store.begin(**{"topic": "orders", "body": b"one", **arguments})
        assert store.wrote_position == 0


def test_closed_and_read_only_stores_refuse(tmp_path):
    with cystore.open(tmp_path / "store") as store:
        half = store.begin("orders", b"one")
        with cystore.open(tmp_path / "store", read_only=True) as reader:
            assert reader.open_transactions() == [half]
            for call in (reader.commit, reader.rollback, reader.check_transactions):
                with pytest.raises(cystore.StoreNotWritableError):
                    call(half)
            with pytest.raises(cystore.StoreNotWritableError):
                reader.begin("orders", b"two")
    for call in (store.commit, store.rollback):
        with pytest.raises(cystore.StoreClosedError):
            call(half)


def test_a_half_message_whose_queue_was_removed_is_ended_by_its_handle(store, monkeypatch):
    half = store.begin("orders", b"one")
    store.open_transactions()
    monkeypatch.delitem(OWN_TOPICS, HALF_TOPIC)  # an earlier version deleted it
    store.delete_topic(HALF_TOPIC)
    store.put_many([Message(topic="x", body=bytes(1000)) for _ in range(10)])
    assert store.commit(half).queue_offset == 0  # the log still has it


def test_a_durable_commit_is_durable(store):
    half = store.begin("orders", b"one", flush="sync")
    store.commit(half, flush="sync")
    assert store.stats()["flushed"] == store.wrote_position
    with pytest.raises(MessageIllegalError, match="flush: must be"):
        store.rollback(store.begin("orders", b"two"), flush="now")


def test_a_half_message_without_room_for_a_note_holds_up_no_check_of_others(store):
    """Seen: `check_transactions` ended with an error at the first one, each time; nobody was asked about the others."""
    store.begin("orders", b"full", properties={"a": "x" * 32_660})
    store.begin("orders", b"ours")
    checked = store.check_transactions(lambda half, message: None)
    assert (checked.asked_again, checked.failed) == (1, 1)
    assert len(store.open_transactions()) == 2
    assert store.check_transactions(lambda half, message: "commit").committed == 2
    assert sorted(bodies(store)) == [b"full", b"ours"]


def test_two_half_messages_of_one_id_are_ended_one_by_one(store):
    """A producer of RocketMQ sends a half message again when it got no answer. Seen: the first one stayed open for
    ever."""
    half = store.begin("orders", b"one")
    first = store.read(half.physical_offset)
    store.put_many([due_message(first, HALF_TOPIC, 0, first.properties_bytes)])
    one, two = store.open_transactions()
    assert one.id == two.id
    store.rollback(one)
    assert store.open_transactions() == [two]
    store.put_many([due_message(first, HALF_TOPIC, 0, first.properties_bytes)])
    assert store.check_transactions(lambda half, message: "rollback").rolled_back == 2
    assert store.open_transactions() == []


@pytest.mark.parametrize("name", ["TRAN_MSG", "PGROUP", "TRANSACTION_CHECK_TIMES"])
def test_properties_of_transactions_are_not_a_programs(store, name):
    """Seen: with TRANSACTION_CHECK_TIMES the first check discarded the message, and nobody was asked."""
    with pytest.raises(MessageIllegalError, match=f"properties: {name} is reserved for transactions"):
        store.begin("orders", b"one", properties={name: "99"})


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC, "SCHEDULE_TOPIC_XXXX"])
def test_a_transaction_of_a_reserved_topic_is_refused_as_a_put_is(store, topic):
    with pytest.raises(MessageIllegalError, match=f"topic: {topic} is reserved for messages of the store"):
        store.begin(topic, b"one")


def test_ended_transactions_take_no_memory(store):
    """Seen: each process kept two numbers for each transaction of the store, until it called `check_transactions`."""
    table = Transactions(store)._table()
    for _ in range(50):
        store.rollback(store.begin("orders", b""))
    assert not table._ops and not table._ended
    half = store.begin("orders", b"one")
    for _ in range(OPS_IN_RUN + 1):
        store.rollback(store.begin("orders", b""))
    table.catch_up()
    assert len(table._ops) == 2
    assert table.begins() == (50, 50)
    store.commit(half)
    table.catch_up()
    assert not table._ops
    assert table.begins() == (51 + OPS_IN_RUN + 1, 51 + OPS_IN_RUN + 1)


@contextlib.contextmanager
def handling(call):
    """The next SIGUSR1 makes a call, once."""
    before = signal.signal(signal.SIGUSR1, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_ends_a_transaction_inside_of_a_look_at_the_notes(store):
    """The look has read the half message, and would enter it. Seen: it was open again, or a KeyError."""
    table = Transactions(store)._table()
    half, real, seen = store.begin("orders", b"one"), table._get, []

    def get(topic, queue_id, offset, count):
        found = real(topic, queue_id, offset, count)
        if topic == HALF_TOPIC and found.messages and count > 1 and not seen:
            seen.append(os.kill(os.getpid(), signal.SIGUSR1))
        return found

    table._get = get
    with handling(lambda: store.commit(half)):
        store.open_transactions()
        store.begin("orders", b"two")  # the handler has run, wherever
    table._get = real
    assert seen and bodies(store) == [b"one"]
    assert half not in store.open_transactions()


class Handled(dict):
    """Calls a handler behind a look at it, once."""

    handler = None

    def get(self, *args):
        found = super().get(*args)
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return found


def test_a_handler_that_drops_a_transaction_inside_of_its_drop(store):
    table, half = Transactions(store)._table(), store.begin("orders", b"one")
    assert store.open_transactions() == [half]
    table._open = Handled(table._open)
    table._open.handler = lambda: table.drop(half)
    table.drop(half)
    assert table.open() == [] and not table._by_id

    other = store.begin("orders", b"two")
    assert store.open_transactions() == [other]
    table._by_id = Handled(table._by_id)
    table._by_id.handler = lambda: (store.rollback(other), store.open_transactions())
    assert table.find(other.id) is None
