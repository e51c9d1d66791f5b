"""Goal: the list of holes answers every offset and survives damage. Method: compare with a plain loop, damage the
file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore.engine.manifest.damaged_ranges import (
    FILE_NAME,
    QUARANTINE,
    DamagedRange,
    DamagedRanges,
    parse_damaged_ranges,
    read_range_list,
    render_damaged_ranges,
    write_damaged_ranges,
)
from cystore.errors import StoreFormatError

ranges = st.tuples(st.integers(0, 60), st.integers(1, 8)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(ranges, max_size=8), st.integers(-1, 80), st.integers(-1, 80))
def test_merged_ranges_cover_what_the_parts_cover(parts, one, other):
    holes = DamagedRanges()
    for begin, end in parts:
        holes = holes.merged([DamagedRange(begin, end)])
    covered = {at for begin, end in parts for at in range(begin, end)}
    assert {at for begin, end in holes.ranges() for at in range(begin, end)} == covered
    assert {at for at in range(-1, 80) if holes.covering(at)} == covered
    begin, end = min(one, other), max(one, other)
    assert set(holes.within(begin, end).ranges()) == {
        r for r in holes.ranges() if r[1] > begin and r[0] < end
    }
    assert parse_damaged_ranges(render_damaged_ranges(holes)) == holes


def test_a_merged_hole_keeps_the_first_reason_and_copy():
    first = DamagedRange(10, 20, "bad checksum", "copy-a", 5)
    assert list(DamagedRanges([first]).merged([DamagedRange(15, 30, "other", "copy-b", 6)])) == [
        DamagedRange(10, 30, "bad checksum", "copy-a", 5)
    ]


@pytest.mark.parametrize(
    "holes", [[DamagedRange(5, 5)], [DamagedRange(-1, 5)], [DamagedRange(0, 5), DamagedRange(4, 9)]]
)
def test_impossible_holes_are_refused(holes):
    with pytest.raises(ValueError):
        DamagedRanges(holes)


def test_a_damaged_list_is_replaced_by_its_last_good_copy(tmp_path):
    assert read_range_list(tmp_path)[0] == DamagedRanges()
    one, two = (
        DamagedRanges([DamagedRange(1, 2, "zero", "c", 3)]),
        DamagedRanges([DamagedRange(1, 2, "zero", "c", 3), DamagedRange(7, 9)]),
    )
    write_damaged_ranges(tmp_path, one)
    write_damaged_ranges(tmp_path, two)
    path = tmp_path / QUARANTINE / FILE_NAME
    assert read_range_list(tmp_path)[0] == two
    path.write_bytes(path.read_bytes()[:-9])
    assert read_range_list(tmp_path)[0] == one
    path.with_name(FILE_NAME + ".bak").write_bytes(b'{"holes":[{"begin":"x"}]}')
    with pytest.raises(StoreFormatError, match=FILE_NAME):
        read_range_list(tmp_path)[0]


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_holes_or_a_value_error(data):
    for candidate in (data, b'{"holes":[' + data + b"]}"):
        try:
            assert isinstance(parse_damaged_ranges(candidate), DamagedRanges)
        except ValueError:
            pass


def test_every_flipped_bit_is_found_out():
    holes = DamagedRanges(
        [DamagedRange(100, 200, "bad checksum", "commitlog-100-200", 1), DamagedRange(4096, 5000)]
    )
    data = bytearray(render_damaged_ranges(holes))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert parse_damaged_ranges(data) == holes
        except ValueError:
            pass
        data[bit // 8] ^= 1 << bit % 8
