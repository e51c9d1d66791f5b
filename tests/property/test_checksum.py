"""Goal: a checksum is that of RFC 3720, whole, in steps, joined, or computed while its bytes are copied or read.
Method: any bytes, and every length around the borders of the ways to compute it, against the crc32c package."""

from __future__ import annotations

import random

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore._native.record import checksum

VALUES = st.integers(0, 0xFFFFFFFF)


def test_the_check_value_of_the_standard():
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c_of_copy(b"123456789") == (b"123456789", 0xE3069283)


@given(st.binary(max_size=5000), VALUES)
def test_any_bytes(data, value):
    wanted = package.crc32c(data, value)
    assert checksum.crc32c(data, value) == wanted
    assert checksum.crc32c_as_read(data, value) == wanted
    assert checksum.crc32c_of_copy(data, value) == (data, wanted)


@pytest.mark.parametrize(
    "lengths",
    [
        range(600),
        range(6073, 6098),
        (4095, 4096, 12287, 12288, 12289, 12311, 12312, 16384, 24576, 24767, 24768, 100_003),
    ],
)
def test_every_length_at_a_border(lengths, rng):
    """Thirds begin at 192 bytes and have at most 4,096; what is read has them from 96 on, and 6,096 bytes at most."""
    for length in lengths:
        data = rng.randbytes(length + 7)
        for begin in (0, random.Random(length).randrange(1, 8)):
            piece = memoryview(data)[begin : begin + length]
            wanted = package.crc32c(piece, 7)
            assert checksum.crc32c_of_copy(piece, 7) == (bytes(piece), wanted), (length, begin)
            assert checksum.crc32c_as_read(piece, 7) == wanted, (length, begin)


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_two_pieces_joined(data, cut):
    first, second = data[:cut], data[cut:]
    joined = checksum.crc32c_of_two(package.crc32c(first), package.crc32c(second), len(second))
    assert joined == package.crc32c(data)
