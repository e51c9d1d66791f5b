"""Goal: units of extended consume queues are written and read as RocketMQ does, and no length leads outside.
Method: any bytes at any position, compared with the oracle."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracle import queue as oracle
from tests.support.property.strategies import INT64, damage

kernel = pytest.importorskip("cystore._native.derived.queue_ext", reason="the kernels are not built")

bitmaps = st.binary(max_size=40)


def oracle_read(data: bytes, position: int) -> tuple:
    nothing = (0, 0, 0, b"")
    if len(data) - position < 2:
        return ("end", *nothing)
    (size,) = struct.unpack_from(">h", data, position)
    if size in (0, -1):
        return ("end", *nothing)
    if size < oracle.EXT_FIXED_BYTES or position + size > len(data):
        return ("bad", *nothing)
    try:
        unit = oracle.parse_ext(data, position)
    except ValueError:
        return ("bad", *nothing)
    return ("ok", unit.size, unit.tags_code, unit.store_timestamp_ms, unit.bitmap)


@given(st.binary(max_size=60), st.integers(0, 60))
@example(b"\x00\x14" + bytes(18), 0)
@example(b"\xff\xff", 0)
@example(b"\x00", 0)
def test_any_bytes(data, position):
    if position > len(data):
        with pytest.raises(ValueError, match="outside"):
            kernel.read(data, position)
    else:
        assert kernel.read(data, position) == oracle_read(data, position)


@given(INT64, INT64, bitmaps, st.data())
def test_a_damaged_unit(tags_code, store_ms, bitmap, data):
    damaged = data.draw(damage(oracle.encode_ext(tags_code, store_ms, bitmap)))
    assert kernel.read(damaged) == oracle_read(damaged, 0)


@given(st.integers(2, 120), st.integers(0, 100), INT64, INT64, bitmaps)
def test_a_unit_is_written_where_four_bytes_stay_free_behind_it(
    length, position, tags_code, store_ms, bitmap
):
    position = min(position, length - 1)
    data, unit = bytearray(b"\x55" * length), oracle.encode_ext(tags_code, store_ms, bitmap)
    expected, room = bytearray(data), length - position
    if room >= len(unit) + 4:
        expected[position : position + len(unit)] = unit
        status = "ok"
    else:
        if room >= 2:
            expected[position : position + 2] = b"\xff\xff"
        status = "no room"
    assert kernel.put(data, position, tags_code, store_ms, bitmap) == (status, len(unit))
    assert data == expected


@given(INT64)
def test_addresses(number):
    assert kernel.is_address(number) is (number <= oracle.EXT_MAX_ADDRESS)


@given(st.integers(0, 2**63 - 2**31 - 2))
def test_an_address_is_a_position_from_the_lowest_number_up(position):
    address = kernel.address_of(position)
    assert address == position - 2**63
    assert kernel.is_address(address)
    assert kernel.position_of(address) == position
