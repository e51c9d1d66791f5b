"""Goal: bits and bitmaps of filters are RocketMQ's, and no bitmap hides a message that matches. Method: hypothesis
makes names, lengths and filters; the oracle, and values of RocketMQ's own BloomFilter, say what is right."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cystore import SqlFilter
from cystore.filters.sql import stored
from tests.oracle import bitmap as oracle

kernel = pytest.importorskip("cystore._native.filters.bitmap", reason="the kernels are not built")

# RocketMQ 4.9.3: BloomFilter.createByFn(20, 32).calcBitPositions(name); 112 bits.
FROM_ROCKETMQ = {
    "CID_abc_efg#topic": (0, 62, 93),
    "billing#orders": (31, 20, 9),
    "g#T": (90, 68, 28),
    "a#b": (101, 103, 59),
    "sixteen#letters_": (69, 110, 104),
    "%RETRY%group|1-2_3#TopicTest": (71, 20, 0),
    "audit#" + "t" * 100: (91, 100, 36),
    "CID_JODIE_1#TopicTest": (96, 40, 33),
}
names = st.binary(max_size=40)
lengths = st.integers(1, 4000).map(lambda count: 8 * count)


@given(names, names, lengths)
@example(b"", b"", 8)
@example(b"g" * 15, b"", 112)
@example(b"g" * 16, b"t" * 15, 112)
def test_the_bits_of_any_group(group, topic, bits):
    made = kernel.GroupBits(group, topic, bits)
    assert list(made.positions) == oracle.positions(group + b"#" + topic, bits)
    assert made.bitmap_bytes == bits // 8


@pytest.mark.parametrize("name", FROM_ROCKETMQ)
def test_bits_that_rocketmq_computed(name):
    group, _, topic = name.encode().partition(b"#")
    assert kernel.GroupBits(group, topic, 112).positions == FROM_ROCKETMQ[name]


FILTERS = ["a > 3", "a = b", "b IN ('x', 'y')", "a IS NULL OR b = 'ü'", "NOT (a > 3)", "FALSE", "TRUE"]
properties = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "4", "x", "y", "ü", "٣", "1e400"]), max_size=3
)
registered = st.lists(
    st.tuples(
        st.sampled_from(["T", "U"]), st.sampled_from(["g1", "g2", "g3", "g4"]), st.sampled_from(FILTERS)
    ),
    unique_by=lambda one: one[:2],
)


@given(registered, properties, lengths)
def test_a_bitmap_has_the_bits_of_the_groups_that_match(filters, given_properties, bits):
    table = kernel.FilterTable(
        [(topic.encode(), group.encode(), SqlFilter(text).program) for topic, group, text in filters], bits
    )
    mine = [one for one in filters if one[0] == "T"]
    matching = [f"{group}#T".encode() for _, group, text in mine if SqlFilter(text).matches(given_properties)]
    made = table.bitmap(b"T", stored(given_properties))
    assert made == (oracle.bitmap(matching, bits) if mine else None)
    for _, group, text in mine:
        is_in = kernel.GroupBits(group.encode(), b"T", bits).is_in(made)
        assert is_in or not SqlFilter(text).matches(given_properties)


def test_an_unknown_expression_marks_every_message():
    table = kernel.FilterTable([(b"T", b"g", None)], 112)
    assert table.bitmap(b"T", b"") == oracle.bitmap([b"g#T"], 112)


def test_a_bitmap_of_another_length_tells_nothing():
    bits = kernel.GroupBits(b"g", b"T", 112)
    assert bits.is_in(b"") and bits.is_in(bytes(13)) and bits.is_in(bytes(15))
    assert not bits.is_in(bytes(14))


@pytest.mark.parametrize("bits", [7, 0, -8])
def test_a_bitmap_without_a_byte_is_refused(bits):
    with pytest.raises(ValueError, match="has no byte"):
        kernel.GroupBits(b"g", b"T", bits)
    with pytest.raises(ValueError, match="has no byte"):
        kernel.FilterTable([(b"T", b"g", None)], bits)
