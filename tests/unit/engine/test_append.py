"""Goal: an append puts each message where RocketMQ would, once, or refuses it by name before anything is written (I1,
I2). Method: messages on and beyond each bound, compared with the oracle's reading of the bytes on disk."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore import layout
from cystore._native.record.message import RESERVED_PROPERTIES
from cystore.errors import (
    MessageIllegalError,
    StoreFormatError,
    StoreFullError,
    StoreNotWritableError,
)
from tests.oracle import record as oracle
from tests.support.process import Process
from tests.support.small_stores import (
    BLANK_BYTES,
    LOG_BYTES,
    RECORD_OVERHEAD,
    SETTINGS,
    body_for,
    open_small,
)


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "s") as store:
        yield store


def file_bytes(store, number: int = 0) -> bytes:
    return (store.path / "commitlog" / f"{number * LOG_BYTES:020d}").read_bytes()


def wrote(store) -> int:
    return store.stats()["wrote"]


# ----------------------------------------------------------------------------------------- where a record goes


def test_puts_in_turn_to_many_queues_go_the_plain_way(store):
    """The appender remembers 64 queues. It finds another one without the slower way, which never changes `last_result`.
    Only the first put into a segment needs that way."""
    for queue_id in range(100):
        store.put("T", b"", queue_id=queue_id)
    plain = 0
    for queue_id in range(100):
        result = store.put("T", b"x", queue_id=queue_id)
        plain += store._attached().appender.last_result is result
        assert (result.queue_offset, store.read(result.physical_offset).queue_id) == (1, queue_id)
    assert plain > 90


def test_record_is_what_the_oracle_reads(store):
    result = store.put(
        "T", b"body", queue_id=3, keys=("a", "b"), tags="t", properties={"p": "v"}, flag=-7, unique_key="u"
    )
    record = oracle.parse(file_bytes(store)[: result.size_bytes])
    assert (record.topic, record.queue_id, record.body, record.flag) == ("T", 3, b"body", -7)
    assert (record.queue_offset, record.physical_offset, record.size) == (0, 0, result.size_bytes)
    assert record.properties == {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "u", "p": "v"}
    assert record.store_timestamp_ms == record.born_timestamp_ms == result.store_timestamp_ms
    assert record.magic == layout.RECORD_MAGIC_CYSTORE
    assert file_bytes(store)[result.size_bytes :] == bytes(LOG_BYTES - result.size_bytes)


@pytest.mark.parametrize("size", [0, 1, 16 * 1024 - 1, 16 * 1024, 100_000])
@pytest.mark.parametrize("record_format", ["cystore", "rocketmq"])
def test_body_of_each_size_has_its_checksum(tmp_path, record_format, size):
    """From 16 KiB on the body's part is computed before the lock is taken, and combined."""
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 18, record_format=record_format
    ) as store:
        body = os.urandom(size)
        store.put("T", b"before")
        result = store.put("T", body, tags="t")
        raw = (store.path / "commitlog" / f"{0:020d}").read_bytes()[result.physical_offset :]
        record = oracle.parse(raw[: result.size_bytes])
        assert record.body == body
        assert (
            record.magic
            == {"cystore": oracle.CYSTORE_MAGIC, "rocketmq": oracle.ROCKETMQ_MAGIC}[record_format]
        )
        assert store.read(result.physical_offset).body == body


def test_record_that_just_fits_leaves_room_for_a_blank_and_no_more(store):
    result = store.put("T", body_for(LOG_BYTES - BLANK_BYTES))
    assert result.size_bytes == LOG_BYTES - BLANK_BYTES
    assert wrote(store) == LOG_BYTES - BLANK_BYTES
    second = store.put("T", b"")
    assert second.physical_offset == LOG_BYTES
    blank = oracle.parse(file_bytes(store)[-BLANK_BYTES:])
    assert blank == oracle.Blank(BLANK_BYTES)


@pytest.mark.parametrize("missing", range(1, 9))
def test_record_that_just_does_not_fit_goes_to_the_next_file(store, missing):
    """Room for the record, but not for the blank behind it."""
    first = store.put("T", body_for(LOG_BYTES // 2))
    room = LOG_BYTES - first.size_bytes
    second = store.put("T", body_for(room - BLANK_BYTES + missing))
    assert second.physical_offset == LOG_BYTES
    assert oracle.parse(file_bytes(store)[first.size_bytes :]) == oracle.Blank(room)
    assert [m.physical_offset for m in store.scan()] == [0, LOG_BYTES]


def test_record_as_large_as_it_may_be_in_each_file(store):
    for number in range(3):
        assert store.put("T", body_for(LOG_BYTES - BLANK_BYTES)).physical_offset == number * LOG_BYTES
    assert [m.queue_offset for m in store.get("T", 0, 0).messages] == [0, 1, 2]


@pytest.mark.parametrize("excess", [1, 7, 8, 5000])
def test_record_larger_than_a_file_is_refused_before_anything_is_written(store, excess):
    """RocketMQ fills a file with a blank for it first."""
    with pytest.raises(MessageIllegalError, match=f"a whole commit log file {LOG_BYTES}"):
        store.put("T", body_for(LOG_BYTES - BLANK_BYTES + excess))
    with pytest.raises(MessageIllegalError, match="a whole commit log file"):
        store.put_many(
            [cystore.Message(topic="T", body=b"1"), cystore.Message(topic="T", body=body_for(LOG_BYTES))]
        )
    assert wrote(store) == 0
    assert store.topics() == {}


def test_queue_offsets_count_each_topic_and_queue_by_itself(store):
    offsets = [
        store.put(topic, b"", queue_id=queue_id).queue_offset
        for topic, queue_id in [("A", 0), ("B", 0), ("A", 0), ("A", 1), ("A", 0), ("B", 0), ("A", 2**31 - 1)]
    ]
    assert offsets == [0, 0, 1, 0, 2, 1, 0]


def test_topics_are_told_apart_though_python_gives_them_one_place(store):
    """The object of a topic may be gone and its address be another's."""
    for number in range(500):
        topic = "".join(["T", str(number % 50)])
        assert store.put(topic, b"").queue_offset == number // 50
        del topic


SYS_FLAGS = {0: True, 8: True, 4: False, 12: False}


@pytest.mark.parametrize(("sys_flag", "counts"), SYS_FLAGS.items())
def test_prepared_and_rollback_take_no_queue_offset(store, sys_flag, counts):
    store.put("T", b"0")
    half = store.put_many(
        [cystore.Message(topic="T", body=b"half", sys_flag=sys_flag, prepared_transaction_offset=77)]
    )[0]
    after = store.put("T", b"1")
    assert half.queue_offset == (1 if counts else 0)
    assert after.queue_offset == (2 if counts else 1)
    assert store.read(half.physical_offset).prepared_transaction_offset == 77
    assert len(store.get("T", 0, 0).messages) == (3 if counts else 2)


def test_hosts_of_either_kind(store):
    results = store.put_many(
        [
            cystore.Message(topic="T", body=b"", born_host="10.1.2.3:80", store_host="[fe80::1]:90"),
            cystore.Message(topic="T", body=b"", born_host="[::1]:1", store_host="10.0.0.1:2", sys_flag=48),
            cystore.Message(topic="T", body=b"", sys_flag=16 | 32 | 1),
        ]
    )
    mixed, other, plain = (store.read(r.physical_offset) for r in results)
    assert (mixed.born_host, mixed.store_host, mixed.sys_flag) == (
        "10.1.2.3:80",
        "[fe80:0:0:0:0:0:0:1]:90",
        32,
    )
    assert (other.born_host, other.store_host, other.sys_flag) == ("[0:0:0:0:0:0:0:1]:1", "10.0.0.1:2", 16)
    assert (plain.born_host, plain.store_host, plain.sys_flag) == ("127.0.0.1:10911",) * 2 + (1,)
    assert results[0].size_bytes == RECORD_OVERHEAD + 1 + 12


def test_store_with_an_ipv6_host_marks_its_records(tmp_path):
    with open_small(tmp_path / "s", store_host="[::1]:10911") as store:
        message = store.read(store.put("T", b"").physical_offset)
        assert (message.born_host, message.sys_flag) == ("[0:0:0:0:0:0:0:1]:10911", 48)


def test_stored_message_is_put_again_as_it_is(store):
    first = store.put("T", b"body", keys=("a",), tags="t", properties={"REAL": "x"}, flag=5)
    message = store.read(first.physical_offset)
    again = store.read(store.put_many([message])[0].physical_offset)
    assert (again.queue_offset, again.body, again.flag) == (1, b"body", 5)
    assert again.properties_bytes == message.properties_bytes
    assert again.born_timestamp_ms == message.born_timestamp_ms


# --------------------------------------------------------------------------------------------------- put_many


def test_put_many_across_files_keeps_the_order(store):
    messages = [cystore.Message(topic="T", body=b"%d" % n, queue_id=n % 2) for n in range(500)]
    results = store.put_many(messages)
    assert wrote(store) > 2 * LOG_BYTES
    assert [(r.physical_offset, r.queue_offset) for r in results] == sorted(
        (r.physical_offset, r.queue_offset) for r in results
    )
    assert [bytes(m.body) for m in store.scan()] == [b"%d" % n for n in range(500)]
    assert [r.queue_offset for r in results] == [n // 2 for n in range(500)]


@pytest.mark.parametrize("bad", [0, 1, 49])
def test_put_many_checks_all_before_it_writes_any(store, bad):
    messages = [cystore.Message(topic="T", body=b"%d" % n) for n in range(50)]
    messages[bad] = cystore.Message(topic="no topic!", body=b"")
    with pytest.raises(MessageIllegalError, match="topic"):
        store.put_many(messages)
    assert wrote(store) == 0
    assert store.topics() == {}


def test_put_many_of_nothing_is_nothing(store):
    assert store.put_many([]) == []
    assert store.put_many(iter(())) == []
    assert wrote(store) == 0


def test_put_many_takes_any_iterable_of_messages(store):
    results = store.put_many(cystore.Message(topic="T", body=b"%d" % n) for n in range(3))
    assert [r.queue_offset for r in results] == [0, 1, 2]


@pytest.mark.parametrize("messages", [5, None, b"x", "x", [b"x"], [("T", b"x")], [None]])
def test_put_many_refuses_what_are_no_messages(store, messages):
    with pytest.raises(MessageIllegalError, match="messages"):
        store.put_many(messages)


def test_put_many_of_one_message_a_hundred_times(store):
    results = store.put_many([cystore.Message(topic="T", body=b"same", keys=("k",))] * 100)
    assert [r.queue_offset for r in results] == list(range(100))
    assert {bytes(m.body) for m in store.scan()} == {b"same"}


# ----------------------------------------------------------------------------------------- what a put refuses

GOOD_TOPICS = ["T", "t" * 127, "%RETRY%group", "a|b", "A-b_9"]
BAD_TOPICS = ["", "t" * 128, "a b", "a/b", "..", "a.b", "ü", "a\0b", "a\x01", "\ud800", None, 5, b"T", ["T"]]


@pytest.mark.parametrize("topic", GOOD_TOPICS)
def test_good_topic(store, topic):
    assert store.read(store.put(topic, b"").physical_offset).topic == topic
    assert store.put_many([cystore.Message(topic=topic, body=b"")])[0].queue_offset == 1


@pytest.mark.parametrize("topic", BAD_TOPICS)
def test_bad_topic(store, topic):
    with pytest.raises(MessageIllegalError, match="topic"):
        store.put(topic, b"")
    with pytest.raises(MessageIllegalError, match="topic"):
        store.put_many([cystore.Message(topic=topic, body=b"")])
    assert wrote(store) == 0


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, type("B", (bytes,), {}), lambda b: memoryview(b)[::1]]
)
def test_body_may_be_any_bytes(store, kind):
    assert store.read(store.put("T", kind(b"body")).physical_offset).body == b"body"


def test_body_with_gaps_in_memory_is_copied_in_order(store):
    assert store.read(store.put("T", memoryview(b"b-o-d-y")[::2]).physical_offset).body == b"body"


def test_body_that_changes_after_the_put_has_not_changed_the_record(store):
    body = bytearray(b"x" * 5000)
    result = store.put("T", body)
    body[:] = b"y" * 5000
    assert store.read(result.physical_offset).body == b"x" * 5000


@pytest.mark.parametrize("body", ["text", 5, None, [1, 2], object()])
def test_body_that_is_no_bytes(store, body):
    with pytest.raises(MessageIllegalError, match="body: must be bytes"):
        store.put("T", body)
    with pytest.raises(MessageIllegalError, match="body: must be bytes"):
        store.put_many([cystore.Message(topic="T", body=body)])


def test_body_up_to_its_maximum_and_one_more(tmp_path):
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20, max_message_size_bytes=70_000
    ) as store:
        assert store.put("T", bytes(70_000)).size_bytes == 70_000 + RECORD_OVERHEAD + 1
        with pytest.raises(MessageIllegalError, match="70001 bytes, at most max_message_size_bytes = 70000"):
            store.put("T", bytes(70_001))
        with pytest.raises(MessageIllegalError, match="70001"):
            store.put_many([cystore.Message(topic="T", body=bytearray(70_001))])


def test_properties_up_to_their_maximum_and_one_more(tmp_path):
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20) as store:
        result = store.put("T", b"", properties={"p": "v" * (32_767 - 2)})
        assert len(store.read(result.physical_offset).properties_bytes) == 32_767
        for more in (
            {"properties": {"p": "v" * (32_768 - 2)}},
            {"keys": ("k" * 32_763,)},
            {"tags": "t" * 32_763},
        ):
            with pytest.raises(MessageIllegalError, match="32768 bytes, at most 32767"):
                store.put("T", b"", **more)
            with pytest.raises(MessageIllegalError, match="32768 bytes, at most 32767"):
                store.put_many([cystore.Message(topic="T", body=b"", **more)])
        assert store.put("T", b"", keys=("k" * 32_762,)).queue_offset == 1


def test_properties_are_counted_for_each_message_of_a_batch(tmp_path):
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20) as store:
        messages = [cystore.Message(topic="T", body=b"", properties={"p": f"{n}" * 20_000}) for n in range(4)]
        store.put_many(messages)
        assert [m.properties["p"][0] for m in store.scan()] == ["0", "1", "2", "3"]


BAD_PROPERTIES = [
    ("keys", "a b", "space"),
    ("keys", ("a", "b c"), "space"),
    ("keys", ("a\x01",), "separates"),
    ("keys", ("a\x02",), "separates"),
    ("keys", (5,), "keys: must be text"),
    ("keys", 5, "keys: must be a tuple"),
    ("keys", b"ab", "keys: must be a tuple"),
    ("keys", ("\ud800",), "not valid Unicode"),
    ("keys", ("",), "keys: an empty key"),
    ("keys", ["a", ""], "keys: an empty key"),
    ("keys", ("a", "", "b"), "keys: an empty key"),
    ("unique_key", "", "unique_key: an empty key"),
    ("properties", {"a": ""}, r"properties\['a'\]: an empty value"),
    ("tags", "", "tags: an empty value"),
    ("tags", "a\x01b", "separates"),
    ("tags", 5, "tags: must be text"),
    ("tags", "\udfff", "not valid Unicode"),
    ("unique_key", "a b", "space"),
    ("unique_key", 7, "unique_key: must be text"),
    ("properties", {"": "v"}, "name is empty"),
    ("properties", {"a\x01": "v"}, "separates"),
    ("properties", {"a": "v\x02"}, "separates"),
    ("properties", {"a": 5}, r"properties\['a'\]: must be text"),
    ("properties", {5: "v"}, "properties: must be text"),
    ("properties", "a=b", "must be a mapping"),
    ("properties", [("a", "b")], "must be a mapping"),
    *(
        ("properties", {name: "v"}, f"{name} is reserved")
        for name in ("KEYS", "TAGS", "UNIQ_KEY", "DELAY", "WAIT")
    ),
    ("queue_id", -1, "queue_id"),
    ("queue_id", 2**31, "queue_id"),
    ("queue_id", 2**70, "queue_id"),
    ("queue_id", "0", "queue_id: must be a whole number"),
    ("queue_id", True, "queue_id"),
    ("flag", 2**31, "flag"),
    ("flag", -(2**31) - 1, "flag"),
    ("flag", None, "flag"),
    ("flush", "SYNC", "flush"),
    ("flush", True, "flush"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_PROPERTIES)
def test_put_refuses_by_name_and_writes_nothing(store, name, value, words):
    with pytest.raises(MessageIllegalError, match=words):
        store.put("T", b"", **{name: value})
    if name in ("keys", "tags", "unique_key", "properties"):
        with pytest.raises(MessageIllegalError, match=words):
            store.put_many(
                [cystore.Message(topic="T", body=b""), cystore.Message(topic="T", body=b"", **{name: value})]
            )
    assert wrote(store) == 0


def test_keys_of_every_shape(store):
    shapes = [("a", "b"), ["a", "b"], iter(["a", "b"]), "a", None, (), [], "", ("ä", "漢字", "😀")]
    found = [store.read(store.put("T", b"", keys=keys).physical_offset).keys for keys in shapes]
    assert found == [("a", "b")] * 3 + [("a",)] + [()] * 4 + [("ä", "漢字", "😀")]


words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02 "), min_size=1, max_size=20
)


@given(
    st.lists(words, max_size=4),
    st.none() | words,
    st.dictionaries(
        words.filter(lambda word: word not in RESERVED_PROPERTIES),
        words,
        max_size=4,
    ),
    st.binary(max_size=300),
)
def test_what_was_put_is_what_is_read(tmp_path_factory, keys, tags, properties, body):
    path = tmp_path_factory.getbasetemp() / "round-trip"
    with open_small(path) as store:
        result = store.put("T", body, keys=tuple(keys), tags=tags, properties=properties)
        message = store.read(result.physical_offset)
        assert message.body == body
        assert message.keys == tuple(keys)
        assert message.tags == tags
        expected = {
            **({"KEYS": " ".join(keys)} if keys else {}),
            **({"TAGS": tags} if tags else {}),
            **properties,
        }
        assert dict(message.properties) == expected


# ---------------------------------------------------------------------------------------------------- the clock

AT = {field.name: at for field, at in layout.CONTROL_FIELDS}


@pytest.mark.parametrize(("ahead_ms", "reported"), [(50_000, 0), (200_000, 1)])
def test_clock_that_went_back_is_held_at_the_last_timestamp(store, ahead_ms, reported):
    """Store timestamps never go back; a clock that is more than a minute behind them is counted."""
    first = store.put("T", b"")
    later = first.store_timestamp_ms + ahead_ms
    control = store._parts.control
    control.last_store_timestamp_ms = later
    assert store.put("T", b"").store_timestamp_ms == later
    assert store.put_many([cystore.Message(topic="T", body=b"")])[0].store_timestamp_ms == later
    assert store.stats()["clock_clamps"] == 2 * reported


def test_a_last_timestamp_further_ahead_than_a_clock_may_jump_is_not_waited_for(store):
    """It came from a wrong clock. Seen: everything was stamped with it until that time had come."""
    first = store.put("T", b"")
    store._parts.control.last_store_timestamp_ms = first.store_timestamp_ms + 365 * 24 * 3_600_000
    assert store.put("T", b"").store_timestamp_ms - first.store_timestamp_ms < 60_000
    assert (
        store.put_many([cystore.Message(topic="T", body=b"")])[0].store_timestamp_ms
        - first.store_timestamp_ms
        < 60_000
    )
    assert store.stats()["clock_clamps"] == 0


def test_born_timestamp_is_the_senders_or_now(store):
    given, now = store.put_many(
        [cystore.Message(topic="T", body=b"", born_timestamp_ms=5), cystore.Message(topic="T", body=b"")]
    )
    assert store.read(given.physical_offset).born_timestamp_ms == 5
    assert store.read(now.physical_offset).born_timestamp_ms == now.store_timestamp_ms


# ------------------------------------------------------------------------------------------------ many queues


def test_queue_table_grows_by_itself_and_is_full_at_its_bound(in_memory):
    with open_small(in_memory / "s", max_queues=600) as store:
        for queue_id in range(600):
            assert store.put("T", b"", queue_id=queue_id).queue_offset == 0
        before = wrote(store)
        with pytest.raises(StoreFullError, match=r"all 600 queue slots are taken \(max_queues\)"):
            store.put("T", b"", queue_id=600)
        with pytest.raises(StoreFullError):
            store.put_many([cystore.Message(topic="T", body=b""), cystore.Message(topic="U", body=b"")])
        assert wrote(store) == before
        assert store.put("T", b"", queue_id=599).queue_offset == 1
        assert sum(len(queues) for queues in store.topics().values()) == 600


def test_batch_that_needs_more_queues_than_a_step(in_memory):
    with open_small(in_memory / "s", mapped_file_size_commit_log_bytes=1 << 20) as store:
        results = store.put_many([cystore.Message(topic="T", body=b"", queue_id=n) for n in range(1000)])
        assert {r.queue_offset for r in results} == {0}
        assert len(store.topics()["T"]) == 1000


# ------------------------------------------------------------------------------------------- not writable, wrong


def test_writing_is_switched_off_and_on_for_every_process(store):
    with Process() as other:
        other.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(store.path), settings=SETTINGS
        )
        other.do("store.set_writable(False)")
        for put in (
            lambda: store.put("T", b""),
            lambda: store.put_many([cystore.Message(topic="T", body=b"")]),
        ):
            with pytest.raises(StoreNotWritableError, match="switched off"):
                put()
        other.do("store.set_writable(True)")
        assert store.put("T", b"").queue_offset == 0


def test_overwritten_block_poisons_the_handle(store):
    store.put("T", b"1")
    before = file_bytes(store)
    store._parts.control.file.write(AT["fingerprint"], bytes(8))
    for put in (lambda: store.put("T", b"2"), lambda: store.put_many([cystore.Message(topic="T", body=b"")])):
        with pytest.raises(StoreFormatError, match="overwritten"):
            put()
    assert file_bytes(store) == before


def test_wrote_position_behind_the_last_sight_of_it_is_an_overwritten_block(store):
    store.put("T", b"1")
    control, at = store._parts.control, wrote(store)
    control.file.write(AT["wrote"], (at - 10).to_bytes(8, sys.byteorder))
    with pytest.raises(StoreFormatError, match="overwritten"):
        store.put("T", b"2")
    control.wrote = at
    assert store.put("T", b"2").queue_offset == 1


# ------------------------------------------------------------------------------------------------------ threads


def test_close_while_threads_put_is_a_refusal_and_not_a_crash(tmp_path):
    """Large bodies: their checksum is computed without the interpreter's lock, so the close comes between."""
    for number in range(8):
        store = open_small(
            tmp_path / str(number), mapped_file_size_commit_log_bytes=1 << 22, max_message_size_bytes=1 << 22
        )
        body, refused, puts = bytes(3_000_000), [], []

        def put(store=store, body=body, refused=refused, puts=puts) -> None:
            while True:
                try:
                    puts.append(store.put("T", body))
                except cystore.StoreClosedError as error:
                    refused.append(error)
                    return

        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(puts) < 2 + number % 3:
            threads[0].join(0.001)
        store.close()
        for thread in threads:
            thread.join()
        assert len(refused) == 3
        with cystore.open(tmp_path / str(number), services="none") as again:
            assert len(list(again.scan())) == len(puts)


def test_threads_of_one_process_append_without_gap_or_repeat(tmp_path):
    with open_small(tmp_path / "s", services=("allocate",)) as store:
        results, start = [], threading.Barrier(8)

        def put(number: int) -> None:
            start.wait()
            mine = [store.put("T", b"%d" % number, queue_id=n % 3) for n in range(300)]
            mine += store.put_many(
                [cystore.Message(topic="T", body=b"%d" % number, queue_id=n % 3) for n in range(300)]
            )
            results.append([(n % 3, r) for n, r in zip([*range(300), *range(300)], mine, strict=True)])

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        every = sorted((queue_id, r.queue_offset) for one in results for queue_id, r in one)
        assert every == [(q, n) for q in range(3) for n in range(1600)]
        places = sorted((r.physical_offset, r.size_bytes) for one in results for _, r in one)
        assert [m.physical_offset for m in store.scan()] == [at for at, _ in places]
