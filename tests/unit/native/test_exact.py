"""Goal: whatever subclass of int, str or float a program gives, the store sees the value and nothing of the subclass
(I1, I2); what is no value is a typed error. Method: subclasses that compare, hash, print and end as they like, and
wrong objects, to every public call."""

from __future__ import annotations

import enum
import gc
import math

import pytest

import cystore
from cystore.errors import StoreError
from tests.support.small_stores import open_small


class Liar(int):
    """Compares as if it were in bounds, prints as nothing."""

    def __lt__(self, other):
        return False

    def __le__(self, other):
        return True

    def __gt__(self, other):
        return False

    def __ge__(self, other):
        return True

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__

    def __int__(self):
        return 3

    def __index__(self):
        return 3

    def __str__(self):
        raise TypeError("not to be printed")

    __repr__ = __str__

    def __format__(self, spec):
        raise TypeError("not to be printed")


class Topics(enum.StrEnum):
    ORDERS = "orders"


class Quiet(str):
    """Hashes and compares as another text."""

    def __hash__(self):
        return 5

    def __eq__(self, other):
        return False

    def __str__(self):
        return "another"

    def __repr__(self):
        raise TypeError("not to be printed")


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "s") as store:
        yield store


@pytest.mark.parametrize("queue_id", [-5, -1, -(2**31), 2**31, 2**63, 2**80])
def test_an_int_that_says_that_it_is_in_bounds_is_checked_itself(tmp_path, queue_id):
    """Seen: the queue id -5 was written; dispatch stopped there, and the next open cut five acknowledged messages
    behind it."""
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"0", queue_id=0)
        calls = (
            lambda: store.put("T", b"", queue_id=Liar(queue_id)),
            lambda: store.put_many([cystore.Message(topic="T", body=b"", queue_id=Liar(queue_id))]),
            lambda: store.get("T", Liar(queue_id), 0),
            lambda: store.wait("T", Liar(queue_id), 0, 0),
            lambda: store.next_queue_offset("T", Liar(queue_id)),
            lambda: store.offset_by_time("T", Liar(queue_id), 0),
        )
        for call in calls:
            with pytest.raises(cystore.MessageIllegalError, match="queue_id: must be a whole number from 0"):
                call()
        acknowledged = [store.put("T", b"%d" % n).queue_offset for n in range(1, 6)]
    with open_small(path) as store:
        assert [m.queue_offset for m in store.get("T", 0, 1).messages] == acknowledged


def test_the_value_of_a_subclass_is_what_counts(store):
    assert store.put("T", b"0", queue_id=Liar(7), flag=Liar(-4)).queue_offset == 0
    assert store.put_many([cystore.Message(topic="T", body=b"1", queue_id=Liar(7))])[0].queue_offset == 1
    found = store.get("T", Liar(7), Liar(1), Liar(1))
    assert [bytes(m.body) for m in found.messages] == [b"1"]
    assert next(store.scan(Liar(0))).flag == -4
    assert store.next_queue_offset("T", Liar(7)) == 2
    assert store.wait("T", Liar(7), Liar(1), Liar(0)) is True
    assert store.hold("h", Liar(0), max_age_ms=Liar(9)).max_age_ms == 9


def test_topics_that_are_members_of_an_enumeration_work_everywhere(store):
    """Seen: `put` took them; `wait`, `next_queue_offset` and tags raised a raw TypeError."""
    put = store.put(Topics.ORDERS, b"1", keys=(Topics.ORDERS,), tags=Topics.ORDERS, unique_key=Topics.ORDERS)
    store.put_many([cystore.Message(topic=Topics.ORDERS, body=b"2", tags=Topics.ORDERS)])
    assert store.next_queue_offset(Topics.ORDERS, 0) == store.next_queue_offset("orders", 0) == 2
    assert store.wait(Topics.ORDERS, 0, 1, 0) is True
    assert len(store.get(Topics.ORDERS, 0, 0, tags=Topics.ORDERS).messages) == 2
    assert [m.physical_offset for m in store.query(Topics.ORDERS, Topics.ORDERS)] == [put.physical_offset]
    assert store.offset_by_time(Topics.ORDERS, 0, 0) == 0
    (first, second) = store.scan()
    assert type(first.topic) is type(second.topic) is str


def test_a_text_that_hashes_and_prints_as_another_is_itself(store):
    for _ in range(3):
        store.put(
            Quiet("T"),
            b"",
            keys=(Quiet("k"),),
            tags=Quiet("t"),
            properties={Quiet("p"): Quiet("v")},
            flush=Quiet("async"),
        )
    assert list(store.topics()) == ["T"]
    (first, *_) = store.query(Quiet("T"), Quiet("k"))
    assert dict(first.properties) == {"KEYS": "k", "TAGS": "t", "p": "v"}
    with pytest.raises(cystore.MessageIllegalError, match="DELAY is reserved"):
        store.put("T", b"", properties={Quiet("DELAY"): "3"})


def test_the_finalizer_of_a_topic_runs_once(store):
    """Seen: the cache of topics kept objects of subclasses, and the finalizer of one that was evicted ran a second
    time."""
    ended = []

    class Ending(str):
        def __del__(self):
            ended.append(str.__str__(self))
            store.put("from a finalizer"[:4], b"")

    for number in range(300):
        store.put(Ending(f"T{number % 100}"), b"")
        store.put_many([cystore.Message(topic=Ending(f"M{number % 100}"), body=b"")])
    gc.collect()
    assert sorted(ended) == sorted(f"{kind}{number % 100}" for kind in "TM" for number in range(300))
    assert len(store.topics()) == 201


class Pairs:
    """A mapping whose `items` puts other topics meanwhile."""

    def __init__(self, act):
        self._act = act

    def items(self):
        self._act()
        return [("p", "v")]


def test_puts_while_a_put_reads_its_properties_leave_its_topic_alone(store):
    def others():
        for number in range(200):
            store.put(f"other{number}", b"")

    for topic in ("T1", Quiet("T2")):
        store.put(topic, b"", properties=Pairs(others))
        store.put_many([cystore.Message(topic=topic, body=b"", properties=Pairs(others))])
    assert [store.next_queue_offset(topic, 0) for topic in ("T1", "T2", "other0")] == [2, 2, 4]


class Wrong:
    """Is nothing, and cannot be printed, hashed or compared."""

    __hash__ = None

    def __repr__(self):
        raise TypeError("not to be printed")

    def __eq__(self, other):
        raise TypeError("not to be compared")


RELEASED = memoryview(b"bytes")
RELEASED.release()
WRONG = (
    Wrong(),
    [1],
    "\udc80",
    "\ud800",
    2**70,
    -(2**70),
    1.5,
    math.nan,
    b"bytes",
    True,
    ("T",),
    RELEASED,
    "\0",
)
CALLS = {
    "put topic": lambda s, x: s.put(x, b""),
    "put body": lambda s, x: s.put("T", x),
    "put queue_id": lambda s, x: s.put("T", b"", queue_id=x),
    "put keys": lambda s, x: s.put("T", b"", keys=x),
    "put one key": lambda s, x: s.put("T", b"", keys=(x,)),
    "put tags": lambda s, x: s.put("T", b"", tags=x),
    "put properties": lambda s, x: s.put("T", b"", properties=x),
    "put value": lambda s, x: s.put("T", b"", properties={"p": x}),
    "put pairs": lambda s, x: s.put("T", b"", properties=type("P", (), {"items": lambda self: [x]})()),
    "put flag": lambda s, x: s.put("T", b"", flag=x),
    "put flush": lambda s, x: s.put("T", b"", flush=x),
    "put unique_key": lambda s, x: s.put("T", b"", unique_key=x),
    "put delay_level": lambda s, x: s.put("T", b"", delay_level=x),
    "put busy": lambda s, x: s.put("T", b"", busy_timeout_ms=x),
    "put_many": lambda s, x: s.put_many(x),
    "put_many item": lambda s, x: s.put_many([x]),
    "put_many flush": lambda s, x: s.put_many([], flush=x),
    **{
        f"Message {field}": lambda s, x, field=field: s.put_many([cystore.Message(**{"topic": "T", "body": b"",
                           field: x})])
        for field in (
            "topic", "body", "queue_id", "keys", "tags", "properties", "flag", "sys_flag", "born_timestamp_ms",
            "born_host",
            "store_host", "reconsume_times", "prepared_transaction_offset", "unique_key", "delay_level",
        )
    },
    "get topic": lambda s, x: s.get(x, 0, 0),
    "get queue_id": lambda s, x: s.get("T", x, 0),
    "get queue_offset": lambda s, x: s.get("T", 0, x),
    "get max_count": lambda s, x: s.get("T", 0, 0, x),
    "get tags": lambda s, x: s.get("T", 0, 0, tags=x),
    "query topic": lambda s, x: s.query(x, "k"),
    "query key": lambda s, x: s.query("T", x),
    "query max_count": lambda s, x: s.query("T", "k", x),
    "query begin_ms": lambda s, x: s.query("T", "k", begin_ms=x),
    "query end_ms": lambda s, x: s.query("T", "k", end_ms=x),
    "read": lambda s, x: s.read(x),
    "scan begin": lambda s, x: list(s.scan(x)),
    "scan end": lambda s, x: list(s.scan(0, x)),
    "offset_by_time topic": lambda s, x: s.offset_by_time(x, 0, 0),
    "offset_by_time queue_id": lambda s, x: s.offset_by_time("T", x, 0),
    "offset_by_time": lambda s, x: s.offset_by_time("T", 0, x),
    "offset_by_time boundary": lambda s, x: s.offset_by_time("T", 0, 0, boundary=x),
    "wait topic": lambda s, x: s.wait(x, 0, 0, 0),
    "wait queue_id": lambda s, x: s.wait("T", x, 0, 0),
    "wait queue_offset": lambda s, x: s.wait("T", 0, x, 0),
    "wait timeout_s": lambda s, x: s.wait("T", 0, -1, x),
    "wait_log": lambda s, x: s.wait_log(x, 0),
    "wait_log timeout_s": lambda s, x: s.wait_log(-1, x),
    "next_queue_offset topic": lambda s, x: s.next_queue_offset(x, 0),
    "next_queue_offset": lambda s, x: s.next_queue_offset("T", x),
    "dispatch max_bytes": lambda s, x: s.dispatch(max_bytes=x),
    "dispatch timeout_s": lambda s, x: s.dispatch(timeout_s=x),
    "deliver": lambda s, x: s.deliver(max_messages=x),
    "deliver timeout_s": lambda s, x: s.deliver(timeout_s=x),
    "clean": lambda s, x: s.clean(x),
    "hold name": lambda s, x: s.hold(x, 0),
    "hold": lambda s, x: s.hold("h", x),
    "hold age": lambda s, x: s.hold("h", 0, max_age_ms=x),
    "release": lambda s, x: s.release(x),
    "scrub": lambda s, x: s.scrub(x),
    "scrub pause": lambda s, x: s.scrub(pause_ms=x),
}  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_value_is_a_typed_error_or_works(store, call):
    """Never a raw TypeError, OverflowError, UnicodeEncodeError or ValueError."""
    store.put("T", b"")
    refused = 0
    for value in WRONG:
        try:
            CALLS[call](store, value)
        except StoreError as error:
            str(error).encode()
            refused += 1
    assert refused
    assert store.put("T", b"").queue_offset > 0
