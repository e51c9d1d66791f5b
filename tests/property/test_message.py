"""Goal: a message shows the record's fields, and never one of a damaged record. Method: valid, damaged and
arbitrary bytes, compared with the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore.errors import CorruptRecordError
from tests.oracle import properties
from tests.oracle.record import Blank, NotValid, encode, parse
from tests.support.golden.dump import java_host
from tests.support.property.strategies import damage, raw_properties, records, sound_properties

kernel = pytest.importorskip("cystore._native.record.message", reason="the kernels are not built")


def assert_same(data: bytes) -> None:
    try:
        record = parse(data)
    except NotValid:
        record = None
    if record is None or isinstance(record, Blank):
        with pytest.raises(CorruptRecordError):
            kernel.message_of(data)
        return
    message = kernel.message_of(data)
    assert message.topic == record.topic
    assert bytes(message.body) == record.body
    assert message.body.readonly
    assert message.size_bytes == record.size
    assert message.body_crc == record.checksum
    assert message.properties_bytes == record.raw_properties
    for name in (
        "queue_id",
        "queue_offset",
        "physical_offset",
        "flag",
        "sys_flag",
        "born_timestamp_ms",
        "store_timestamp_ms",
        "reconsume_times",
        "prepared_transaction_offset",
    ):
        assert getattr(message, name) == getattr(record, name), name


@given(records())
def test_every_field_of_a_valid_record(record):
    assert_same(encode(record).raw)


@given(records(), st.data())
def test_a_damaged_record_is_no_message(record, data):
    assert_same(data.draw(damage(encode(record).raw)))


@given(st.binary(max_size=300))
def test_arbitrary_bytes(data):
    assert_same(data)


@given(records(properties=sound_properties()))
def test_properties_keys_tags_and_hosts(record):
    message = kernel.message_of(encode(record).raw)
    assert dict(message.properties) == record.properties
    assert message.keys == record.keys
    assert message.tags == record.tags
    assert message.unique_key == record.properties.get("UNIQ_KEY")
    if record.born_host[-4] < 128:
        assert message.born_host == java_host(record.born_host)
    if record.store_host[-4] < 128:
        assert message.store_host == java_host(record.store_host)


@given(raw_properties.filter(lambda data: b"\xed" not in data))
def test_properties_of_any_bytes(data):
    """But for encoded surrogates, of which Java makes one U+FFFD and Python three."""
    assert kernel.parse_properties(data) == properties.parse(data)
