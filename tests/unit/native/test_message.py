"""Goal: a message to be put is checked field by field, and what a put gives back can be compared, kept and sent.
Method: every parameter with values on and beyond its bounds; stored messages are in tests/property."""

from __future__ import annotations

import copy
import gc
import json
import pickle

import pytest

import cystore
from cystore._native.record.message import (
    decode_host,
    encode_host,
    message_at,
    message_of,
    messages_in,
)
from cystore.errors import CorruptRecordError, MessageIllegalError
from tests.oracle.record import CYSTORE_MAGIC, Record, encode
from tests.support.small_stores import open_small

INT32 = (-0x80000000, 0x7FFFFFFF)
INT64 = (-(1 << 63), (1 << 63) - 1)
BOUNDS = {
    "queue_id": (0, 0x7FFFFFFF),
    "flag": INT32,
    "sys_flag": INT32,
    "reconsume_times": INT32,
    "prepared_transaction_offset": INT64,
    "born_timestamp_ms": INT64,
}


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_number_is_taken_up_to_its_bounds(name, bounds):
    low, high = bounds
    for value in (low, high):
        if (name, value) != ("born_timestamp_ms", -1):
            assert getattr(cystore.Message(topic="T", body=b"", **{name: value}), name) == value
    for value in (low - 1, high + 1, "1", 1.0, True, b"1"):
        with pytest.raises(MessageIllegalError, match=name):
            cystore.Message(topic="T", body=b"", **{name: value})


def test_message_of_ones_own_has_no_place_yet():
    message = cystore.Message(
        topic="T", body=b"b", keys=("k",), tags="t", properties={"p": "v"}, unique_key="u"
    )
    assert (message.topic, message.body, message.keys, message.tags) == ("T", b"b", ("k",), "t")
    assert dict(message.properties) == {"p": "v"}
    assert message.unique_key == "u"
    place = (
        "queue_offset",
        "physical_offset",
        "size_bytes",
        "store_timestamp_ms",
        "body_crc",
        "record_format",
    )
    assert [getattr(message, name) for name in place] == [None] * 6
    assert message.born_host is None
    assert message.born_timestamp_ms is None
    assert "to 'T'/0" in repr(message)


@pytest.mark.parametrize("body", [b"gr\xc3\xbcn", bytearray(b"gr\xc3\xbcn"), memoryview(b"gr\xc3\xbcn"), b""])
def test_the_body_as_bytes_and_as_text(tmp_path, body):
    given = cystore.Message(topic="T", body=body)
    with open_small(tmp_path / "s") as store:
        stored = store.read(store.put_many([given])[0].physical_offset)
        copied = pickle.loads(pickle.dumps(stored))
    for message in (given, stored, copied):
        assert type(message.data) is bytes
        assert message.data == bytes(body)
        assert message.text() == message.text("utf-8") == bytes(body).decode()
        assert message.text("latin-1") == bytes(body).decode("latin-1")
    assert json.loads(cystore.Message(topic="T", body=b"[1]").data) == [1]


@pytest.mark.parametrize(
    ("body", "arguments", "words"),
    [
        (b"a\xff", (), "can't decode byte 0xff in position 1.*read `data`"),
        (b"a", ("no such encoding",), "no such encoding"),
        (b"a", (5,), "encoding"),
        (b"a\xff", ("utf-8", "no such rule"), "no such rule"),
    ],
)
def test_a_body_that_is_no_text_is_refused_with_its_place(tmp_path, body, arguments, words):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"first")
        stored = store.read(store.put("T", body).physical_offset)
        with pytest.raises(MessageIllegalError, match=words) as raised:
            stored.text(*arguments)
    assert raised.value.offset == stored.physical_offset > 0
    assert "T/0 at 1" in str(raised.value)
    assert stored.text(errors="replace")[0] == "a"
    assert stored.data == body


def test_a_message_without_bytes_has_no_data():
    for body in ("text", None, 5):
        with pytest.raises(MessageIllegalError, match="body"):
            cystore.Message(topic="T", body=body).text()
    with pytest.raises(MessageIllegalError, match="body"):
        cystore.Message.__new__(cystore.Message).data  # noqa: B018


def test_a_message_is_made_once(tmp_path):
    """A put kept pointers to the bytes of a body, and another `__init__` of the message let them go: the record had
    whatever was there then."""
    first = cystore.Message(topic="T", body=bytes(range(200)) * 10)

    class Changing:
        def items(self):
            with pytest.raises(MessageIllegalError, match="once"):
                first.__init__(topic="T", body=b"other")
            return ()

    with open_small(tmp_path / "s") as store:
        store.put_many([first, cystore.Message(topic="T", body=b"", properties=Changing())])
        stored = store.get("T", 0, 0).messages[0]
        assert bytes(stored.body) == first.body == bytes(range(200)) * 10
        with pytest.raises(MessageIllegalError, match="once"):
            stored.__init__(topic="U", body=b"")


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("127.0.0.1:10911", bytes([127, 0, 0, 1, 0, 0, 42, 159])),
        ("255.255.255.255:2147483647", b"\xff\xff\xff\xff\x7f\xff\xff\xff"),
        ("[::1]:0", bytes(15) + b"\x01" + bytes(4)),
        ("[fe80::1]:5", b"\xfe\x80" + bytes(13) + b"\x01" + b"\0\0\0\x05"),
    ],
)
def test_host_is_stored_as_address_and_port(text, packed):
    assert encode_host(text) == packed
    assert encode_host(decode_host(packed)) == packed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1",
        ":1",
        "localhost:1",
        "127.0.0.1:",
        "127.0.0.1:-1",
        "1.2.3.4:2147483648",
        "1.2.3:4",
        "[::1]",
    ],
)
def test_host_that_is_none_names_its_field(text):
    with pytest.raises(MessageIllegalError, match="born_host"):
        cystore.Message(topic="T", body=b"", born_host=text)
    with pytest.raises(MessageIllegalError, match="store_host"):
        cystore.Message(topic="T", body=b"", store_host=text)


def test_results_are_compared_hashed_and_sent(tmp_path):
    with cystore.open(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 16, services=()) as store:
        first, second = store.put("T", b"1"), store.put("T", b"1")
    assert first != second
    assert first != (first.physical_offset, first.queue_offset, first.size_bytes, first.store_timestamp_ms)
    again = pickle.loads(pickle.dumps(second))
    assert again == second
    assert hash(again) == hash(second)
    assert repr(second) == (
        f"PutResult(physical_offset={first.size_bytes}, queue_offset=1, size_bytes={second.size_bytes}, "
        f"store_timestamp_ms={second.store_timestamp_ms})"
    )


def test_result_has_no_constructor_of_its_own_fields():
    with pytest.raises(AttributeError):
        cystore.PutResult().physical_offset = 5  # type: ignore[misc]


def test_view_of_a_body_outlives_its_message():
    raw = encode(Record(topic="T", body=b"a body")).raw
    body = message_of(raw).body
    assert body == b"a body"
    assert body.readonly
    with pytest.raises(TypeError):
        body[0] = 0


def records(count: int) -> bytes:
    parts, at = [], 0
    for number in range(count):
        raw = encode(
            Record(
                topic="T", body=bytes([number]), physical_offset=at, queue_offset=number, magic=CYSTORE_MAGIC
            )
        ).raw
        parts.append(raw)
        at += len(raw)
    return b"".join(parts)


@pytest.fixture
def mapped():
    from cystore._native.memory.mapping import MappedFile

    data = records(5)
    file = MappedFile.anonymous(0, len(data) + 50)
    file.write(0, data)
    return file, data


def test_messages_in_a_row_up_to_a_count_and_an_end(mapped):
    file, data = mapped
    size = len(data) // 5
    found, following = messages_in(file, 0, len(data), 3)
    assert [bytes(m.body)[0] for m in found] == [0, 1, 2]
    assert following == 3 * size
    found, following = messages_in(file, following, len(data), 30)
    assert [m.queue_offset for m in found] == [3, 4]
    assert following == len(data)


def test_messages_before_the_damage_are_given_first(mapped):
    file, data = mapped
    size = len(data) // 5
    file.write(3 * size + 60, b"\xff\xff")
    found, following = messages_in(file, 0, len(data), 30)
    assert (len(found), following) == (3, 3 * size)
    with pytest.raises(CorruptRecordError, match=f"offset {3 * size}"):
        messages_in(file, following, len(data), 30)


def test_parts_keep_their_places_when_the_bytes_change(mapped):
    """A program that overwrites the log must not lead a message's readers outside of its record."""
    file, data = mapped
    size = len(data) // 5
    message = message_at(file, 4 * size, size)
    length = len(message.properties_bytes)
    file.write(4 * size, b"\xff" * size)
    assert message.size_bytes == size
    assert message.body == b"\xff"
    assert message.properties_bytes == b"\xff" * length
    assert message.born_host == message.store_host == "255.255.255.255:-1"
    assert message.store_timestamp_ms == -1
    assert message.topic == "\ufffd"


def test_a_message_whose_bytes_changed_is_not_put_again(mapped, tmp_path):
    file, data = mapped
    size = len(data) // 5
    message = message_at(file, 0, size)
    file.write(0, b"\xff" * size)
    with open_small(tmp_path / "s") as store, pytest.raises(MessageIllegalError, match="topic"):
        store.put_many([message])


def test_a_message_that_was_never_made_is_not_put(tmp_path):
    """The topic that the put knew was None before the first message, too: the put raised SystemError."""
    with open_small(tmp_path / "s") as store, pytest.raises(MessageIllegalError, match="topic"):
        store.put_many([cystore.Message.__new__(cystore.Message)])


def test_a_message_that_was_never_made_reads_no_record():
    message = cystore.Message.__new__(cystore.Message)
    assert message.topic is None
    assert repr(message) == "<Message to None/0>"


@pytest.mark.parametrize(("at", "end"), [(-1, 10), (0, 10_000), (5, 4)])
def test_places_outside_the_file_are_refused(mapped, at, end):
    file, _ = mapped
    if at < end:
        with pytest.raises(CorruptRecordError):
            messages_in(file, at, end, 5)
    with pytest.raises(CorruptRecordError):
        message_at(file, at, end - at if end > at else -1)


def test_the_garbage_collector_does_not_visit_messages(tmp_path):
    """It took a third of a lookup of many keys."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"body", keys=("k",), properties={"a": "b"})
        for message in (store.get("T", 0, 0).messages[0], store.query("T", "k")[0]):
            assert (
                message.keys == ("k",) and message.properties["a"] == "b" and bytes(message.body) == b"body"
            )
            assert not gc.is_tracked(message)


@pytest.mark.parametrize(
    "refused",
    [
        {"topic": 5},
        {"queue_id": -1},
        {"flag": 1 << 31},
        {"born_host": "x"},
        {"store_host": 5},
        {"expires_at_ms": 0},
    ],
)
def test_a_message_whose_arguments_were_refused_is_not_put(tmp_path, refused):
    """Else it had the values that came before the refused one, and zeros: it was born in 1970."""
    message = cystore.Message.__new__(cystore.Message)
    with pytest.raises(MessageIllegalError):
        message.__init__(**{"topic": "T", "body": b"x", **refused})
    with open_small(tmp_path / "s") as store:
        with pytest.raises(MessageIllegalError, match="topic"):
            store.put_many([message])
        assert store.stats()["put_count"] == 0


def state(**changed) -> tuple:
    """What the pickle of a message to be put holds, with some of it changed."""
    names = ("topic", "body", "keys", "tags", "properties", "unique_key", "born_host", "store_host", "stored")
    message = cystore.Message(topic="T", body=b"x", born_host="1.2.3.4:5", store_host="[::1]:6")
    rebuild, values = message.__reduce__()
    numbers = dict(zip(("queue_id", "delay_level"), (9, 13), strict=True))
    found = list(values)
    for name, value in changed.items():
        found[numbers[name] if name in numbers else names.index(name)] = value
    return rebuild, tuple(found)


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": None},
        {"topic": "\udc80"},
        {"queue_id": -1},
        {"delay_level": -1},
        {"born_host": b"x"},
        {"store_host": b""},
        {"store_host": bytes(21)},
        {"stored": b"", "body": 5},
        {"stored": b"", "body": bytearray(b"x")},
        {"stored": b"", "born_host": None},
    ],
)
def test_a_pickle_with_what_no_message_has_is_refused(changed):
    """Seen: a put wrote a record that no reader could read, or bytes from beside an object's memory."""
    rebuild, values = state(**changed)
    with pytest.raises(MessageIllegalError):
        rebuild(*values)


def test_the_pickle_of_a_copy_with_stored_properties_is_put(tmp_path):
    rebuild, values = state(stored=b"a\x01b", store_host=None)
    with open_small(tmp_path / "s") as store:
        store.put_many([rebuild(*values)])
        (message,) = store.scan()
        assert (message.properties, bytes(message.body), message.born_host) == ({"a": "b"}, b"x", "1.2.3.4:5")


def test_a_message_without_a_topic_is_not_copied():
    """Else its pickle could not be loaded."""
    refused = cystore.Message.__new__(cystore.Message)
    with pytest.raises(MessageIllegalError):
        refused.__init__(topic="T", body=b"x", queue_id=-1)
    for message in (cystore.Message.__new__(cystore.Message), refused):
        for made in (pickle.dumps, copy.copy):
            with pytest.raises(MessageIllegalError, match="without a topic"):
                made(message)
