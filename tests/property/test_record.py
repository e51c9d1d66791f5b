"""Goal: the record kernel reads bytes as the format says, whatever they are. Method: arbitrary bytes, valid
records, damaged records; the kernel's answer is compared with the oracle's."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.oracle import java, properties
from tests.oracle.record import Blank, NotValid, encode, parse
from tests.support.property.strategies import damage, property_pieces, raw_properties, records

kernel = pytest.importorskip("cystore._native.record.record", reason="the kernels are not built")
properties_kernel = pytest.importorskip(
    "cystore._native.record.properties", reason="the kernels are not built"
)

NUMBERS = {
    "magic": "magic",
    "checksum": "checksum",
    "queue_id": "queue_id",
    "flag": "flag",
    "queue_offset": "queue_offset",
    "physical_offset": "physical_offset",
    "sys_flag": "sys_flag",
    "born_timestamp": "born_timestamp_ms",
    "store_timestamp": "store_timestamp_ms",
    "born_host": "born_host",
    "store_host": "store_host",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset",
    "body": "body",
    "properties": "raw_properties",
}


def assert_same(data: bytes) -> None:
    status, fields = kernel.parse(data)
    try:
        found = parse(data)
    except NotValid:
        # A blank must fill its file to the end: only the caller knows where that is.
        assert status not in ("ok",), fields
        return
    if isinstance(found, Blank):
        assert (status, fields) == ("blank", {"total_size": found.size})
        return
    assert status == "ok"
    assert fields.pop("total_size") == found.size
    assert fields.pop("topic").decode() == found.topic
    assert fields == {name: getattr(found, theirs) for name, theirs in NUMBERS.items()}


@given(records())
def test_every_field_of_a_valid_record(record):
    assert_same(encode(record).raw)


@given(records(), st.binary(max_size=40))
def test_bytes_behind_a_record_do_not_matter(record, tail):
    assert_same(encode(record).raw + tail)


@given(records(), st.data())
def test_a_damaged_record(record, data):
    assert_same(data.draw(damage(encode(record).raw)))


@given(records(), st.data())
def test_a_cut_record_is_short(record, data):
    raw = encode(record).raw
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    assert kernel.parse(cut) == ("short", {})


@given(st.binary(max_size=300))
@example(bytes(91))
@example(bytes.fromhex("00000008cbd43194"))
@example(bytes.fromhex("00000007cbd43194"))
@example(bytes.fromhex("fffffffccbd43194"))
def test_arbitrary_bytes(data):
    assert_same(data)


@given(records(), st.integers(0, 400), st.integers(1, 255))
def test_no_changed_byte_of_a_cystore_record_goes_unseen(record, at, mask):
    raw = bytearray(encode(record).raw)
    assume(at < len(raw))
    raw[at] ^= mask
    if record.magic == 0x43595331:
        assert kernel.parse(raw)[0] != "ok"


@given(st.lists(property_pieces).map(b"".join))
@example(b"\xed\xa0\x80")
@example(b"\xed\xa0")
@example(b"\xe4\xb8")
@example(b"\xf0\x9f\x98")
@example(b"\xf4\x90\x80\x80")
@example(b"\xe0\x80\x80")
def test_java_hash(data):
    assert kernel.hash_code(data) == java.string_hash(java.text(data))


@given(
    st.text().map(lambda t: t.encode("utf-8", "replace")),
    st.text().map(lambda t: t.encode("utf-8", "replace")),
)
def test_java_hash_goes_on_from_a_seed(first, second):
    assert kernel.hash_code(second, kernel.hash_code(first)) == java.string_hash(java.text(first + second))


@given(raw_properties)
@example(b"TAGS\x01a\x02TAGS\x01b")
@example(b"TAGS\x01a\x02TAGS\x01")
@example(b"TAGS\x01a\x01b\x02")
@example(b"\x01a\x02TAGS\x01b")
def test_properties(data):
    found = properties.parse(data)
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "WAIT"):
        value = properties_kernel.find_property(data, name.encode())
        assert (None if value is None else java.text(value)) == found.get(name)
