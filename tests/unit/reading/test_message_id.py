"""Goal: a message id names one record of one store host, and other text is refused; the earliest time steps over what
is gone. Method: ids of any host and offset, spoilt ids, a store that is cleaned."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore import MessageId
from cystore.errors import CorruptRecordError, MessageIllegalError, OffsetError
from tests.support.small_stores import body_for, open_small

HOSTS = st.builds(
    lambda address, port: f"[{address.exploded}]:{port}" if address.version == 6 else f"{address}:{port}",
    st.ip_addresses(),
    st.integers(0, 65_535),
)


@given(HOSTS, st.integers(0, 2**63 - 1))
def test_an_id_says_where_the_record_is(host, offset):
    text = str(MessageId(host, offset))
    assert len(text) == (56 if host.startswith("[") else 32) and text == text.upper()
    found = MessageId.parse(text)
    assert found.physical_offset == offset and str(found) == text == str(
        MessageId.parse(text.lower()) or found
    )
    address, _, port = found.store_host.rpartition(":")
    wanted, _, wanted_port = host.rpartition(":")
    assert ipaddress.ip_address(address.strip("[]")) == ipaddress.ip_address(wanted.strip("[]"))
    assert port == wanted_port


GOOD = "7F00000100002A9F0000000000000000"


LENGTHS = ["", "x", GOOD[:-2], GOOD + "00"]
DIGITS = [GOOD[:-1] + "g", " " + GOOD[1:], "7F 00" + GOOD[5:], GOOD[:16] + "F" * 16]


@pytest.mark.parametrize("text", [*LENGTHS, *DIGITS, None, 7, GOOD.encode()])
def test_other_text_is_refused(tmp_path, text):
    with open_small(tmp_path / "s") as store, pytest.raises(MessageIllegalError, match="message id"):
        store.read_by_id(text)


def test_a_message_is_read_by_its_id_and_no_other_stores_message_is(tmp_path):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"first")
        put = store.put("T", b"second")
        message = store.read(put.physical_offset)
        mine = MessageId.of(message)
        assert bytes(store.read_by_id(mine).body) == bytes(store.read_by_id(str(mine)).body) == b"second"
        with pytest.raises(OffsetError, match=r"the message id names 10\.9\.8\.7:10911"):
            store.read_by_id(MessageId("10.9.8.7:10911", put.physical_offset))
        with pytest.raises(OffsetError):
            store.read_by_id(MessageId(mine.store_host, store.wrote_position))
        with pytest.raises(CorruptRecordError):
            store.read_by_id(MessageId(mine.store_host, put.physical_offset + 1))
    with pytest.raises(MessageIllegalError, match="it was not read from a store"):
        MessageId.of(cystore.Message(topic="T", body=b""))


def test_the_earliest_time_steps_over_what_is_cleaned(tmp_path):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        assert store.earliest_time_ms() is None
        assert store.earliest_time_ms("T", 0) is None
        for _ in range(20):
            store.put("T", body_for(2_000))
        store.put("other", b"")
        assert store.clean().segments > 0
        (first, *_), other = list(store.scan()), store.get("other", 0, 0).messages[0]
        assert first.queue_offset > 0
        assert store.earliest_time_ms() == store.earliest_time_ms("T") == first.store_timestamp_ms
        assert store.earliest_time_ms("other", 0) == other.store_timestamp_ms
