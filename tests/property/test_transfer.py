"""Goal: the copy of a waiting message is the message itself, with the notes of its transfer, whatever its properties
are (I9). Method: property strings of odd and usual parts, beside the rules as plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore._native.derived.transfer import (
    carried_due_ms,
    carried_properties,
    delivered_copy,
    leave_source_out,
    source_text,
    target_of,
)
from cystore._native.record.message import message_of
from cystore._native.record.properties import changed_properties
from tests.oracle.record import CYSTORE_MAGIC, SCHEDULE_TOPIC, Record, encode

LONGEST = 32_767
PAIRS = [
    *(b"REAL_TOPIC\x01T", b"REAL_TOPIC\x01U|%", b"REAL_TOPIC\x01", b"REAL_TOPIC", b"REAL_TOPIC\x01a/b"),
    *(b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX", b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC", b"REAL_TOPIC\x01\xff"),
    *(b"REAL_QID\x010", b"REAL_QID\x01007", b"REAL_QID\x01-1", b"REAL_QID\x01", b"REAL_QID\x012147483647"),
    *(b"REAL_QID\x012147483648", b"REAL_QID\x01" + b"0" * 40 + b"5", b"REAL_QID\x01" + b"9" * 40),
    *(b"REAL_QID\x01\xd9\xa1", b"DELAY_SOURCE\x010:1:2:3", b"DELAY_SOURCE", b"DELAY_SOURCE\x01"),
    *(b"DELAY_SOURCES\x01x", b"DELAY_DUE\x011700000000000", b"DELAY_DUE\x010", b"DELAY_DUE\x01-5", b"DELAY_DUE"),
    *(b"DELAY_DUE\x01" + b"1" * 17, b"DELAY_DUE\x01" + b"1" * 18, b"DELAY_DUE\x01\xd9\xa1", b"DELAY\x011"),
    *(b"", b"a", b"a\x01x", b"a\x01", b"\x01x", b"KEYS\x01k l", "键\x01值".encode(), b"DELAY_DUE\x01"),
]  # fmt: skip
usual = st.just(b"KEYS\x01k\x02DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x013")
property_strings = st.one_of(
    usual,
    st.lists(st.sampled_from(PAIRS), max_size=8).map(b"\x02".join),
    st.tuples(usual, st.integers(LONGEST - 120, LONGEST)).map(
        lambda of: of[0] + b"\x02a\x01" + b"x" * (of[1] - len(of[0]) - 3)
    ),
)


def check_copies(message: cystore.Message, record: Record) -> None:
    """Compares everything that the kernel makes of a stored message for its transfer with the rules."""
    found = dict(message.properties)
    text, due = found.get("DELAY_DUE", ""), None
    if record.topic == SCHEDULE_TOPIC and record.queue_id >= 256 and text.isascii() and text.isdecimal():
        due = int(text) or None if len(text) <= 17 else None
    assert carried_due_ms(message) == due
    source = f"{record.queue_id}:{record.queue_offset}:{record.physical_offset}:{record.store_timestamp_ms}"
    assert source_text(message) == source
    old = ("DELAY_SOURCE",) if due is None else ("DELAY_SOURCE", "DELAY_DUE")
    unnamed = changed_properties(record.raw_properties, {}, old)
    named = changed_properties(record.raw_properties, {"DELAY_SOURCE": source}, old)
    carried = changed_properties(record.raw_properties, {"DELAY_DUE": "77", "DELAY_SOURCE": source}, old)
    assert carried_properties(message, 77) == (carried if len(carried) <= LONGEST else None)

    topic, queue_id = found.get("REAL_TOPIC"), found.get("REAL_QID", "")
    number = int(queue_id) if queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 4_000 else -1
    if not topic or topic in (SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC") or not 0 <= number <= 0x7FFFFFFF:
        for refused in (target_of, delivered_copy):
            with pytest.raises(ValueError, match="REAL_"):
                refused(message)
        return
    assert target_of(message) == (topic, number)
    copy = delivered_copy(message)
    _, body, *_, born, stored, raw, _, flag, sys_flag, times, level, born_ms, prepared, delay = (
        copy.__reduce__()[1]
    )
    assert (copy.topic, copy.queue_id) == (topic, number)
    assert raw == (named if len(named) <= LONGEST else unnamed)
    assert (body, born, stored) == (record.body, record.born_host, record.store_host)
    assert (flag, sys_flag, times) == (record.flag, record.sys_flag, record.reconsume_times)
    assert (level, born_ms, prepared, delay) == (0, record.born_timestamp_ms, 0, 0)
    leave_source_out(copy)
    assert copy.__reduce__()[1][8] == unnamed


@given(
    property_strings,
    st.sampled_from([0, 3, 255, 256, 300, 0x7FFFFFFF]),
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 12),
    st.sampled_from([SCHEDULE_TOPIC, "T", "SCHEDULE_TOPIC_XXXY"]),
    st.binary(max_size=40),
    st.sampled_from([0, 1, 48, 0x10000]),
)
def test_i9_a_copy_is_the_message_with_its_notes(raw, queue_id, number, topic, body, sys_flag):
    record = encode(
        Record(
            topic=topic,
            body=body,
            magic=CYSTORE_MAGIC,
            queue_id=queue_id,
            queue_offset=number,
            physical_offset=number,
            store_timestamp_ms=number,
            born_timestamp_ms=number,
            sys_flag=sys_flag,
            flag=7,
            reconsume_times=2,
            prepared_transaction_offset=9,
            born_host=bytes(range(20 if sys_flag & 16 else 8)),
            store_host=bytes(range(20 if sys_flag & 32 else 8)),
            raw_properties=raw,
        )
    )
    check_copies(message_of(record.raw), record)


def test_a_message_to_be_put_has_no_source():
    message = cystore.Message(topic="T", body=b"")
    assert carried_due_ms(message) is None
    for asked in (target_of, source_text, delivered_copy):
        with pytest.raises(cystore.MessageIllegalError, match="stored"):
            asked(message)
    for other in (message, cystore.Message.__new__(cystore.Message)):
        with pytest.raises(cystore.MessageIllegalError, match="copy"):
            leave_source_out(other)
