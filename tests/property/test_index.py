"""Goal: the index kernel writes RocketMQ's bytes and finds what they hold, and damage leads it nowhere.
Method: entries made by hypothesis are put by the kernel and by the oracle; chains are looked up in files of
any bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import index as oracle
from tests.oracle.java import index_hash, string_hash, text
from tests.support.property.strategies import INT64, damage, property_pieces, topics

kernel = pytest.importorskip("cystore._native.derived.index", reason="the kernels are not built")

SLOTS, CAPACITY = 7, 24
FOREVER = (0, 2**63 - 1)
HASH_AT = [f"T#{n}" for n in range(12)]


@st.composite
def entered(draw) -> list[tuple[str, int, int]]:
    """Keys in the order that dispatch enters them: offsets and store timestamps rise, some stand still."""
    offset, now, entries = draw(st.integers(0, 2**40)), draw(st.integers(1, 2**42)), []
    for _ in range(draw(st.integers(0, CAPACITY + 2))):
        entries.append((draw(st.sampled_from(HASH_AT)), offset, now))
        offset += draw(st.sampled_from([0, 0, 100, 5000]))
        now += draw(st.sampled_from([0, 1, 999, 1000, 3_600_000, 2**41]))
    return entries


def build(entries) -> tuple[oracle.IndexFile, bytearray]:
    """The same keys put into an empty file by the oracle and by the kernel."""
    ours, data = oracle.IndexFile(SLOTS, CAPACITY), bytearray(oracle.file_bytes(SLOTS, CAPACITY))
    for key, offset, now in entries:
        put = kernel.put(data, SLOTS, CAPACITY, index_hash(key), offset, now)
        assert put is not ours.is_full
        if put:
            ours.put(key, offset, now)
    return ours, data


def looked_up(data, key: str, begin_ms: int = 0, end_ms: int = FOREVER[1], room: int = 16) -> list[int]:
    return kernel.lookup(data, SLOTS, CAPACITY, index_hash(key), begin_ms, end_ms, room)


@given(topics, st.lists(property_pieces).map(b"".join))
def test_the_hash_of_a_key(topic, key):
    assert kernel.key_hash(topic.encode(), key) == index_hash(f"{topic}#{text(key)}")


def test_the_one_hash_that_has_no_absolute_value():
    assert string_hash("T#folvslpu") == -(2**31)
    assert kernel.key_hash(b"T", b"folvslpu") == index_hash("T#folvslpu") == 0


@given(entered())
def test_entries_are_rocketmqs_bytes(entries):
    ours, data = build(entries)
    assert data == ours.data


@given(entered(), entered())
def test_a_file_that_follows_another(first, second):
    """Its first entry counts its seconds from the end of the file before."""
    before, _ = build(first)
    ours = oracle.IndexFile(SLOTS, CAPACITY)
    ours.continue_from(before)
    data = bytearray(ours.data)
    for key, offset, now in second[: CAPACITY - 1]:
        ours.put(key, offset, now)
        assert kernel.put(data, SLOTS, CAPACITY, index_hash(key), offset, now)
    assert data == ours.data


@given(entered(), st.integers(1, 64))
def test_a_chain_is_found_newest_first(entries, room):
    ours, data = build(entries)
    for key in HASH_AT:
        assert looked_up(data, key, room=room) == [e.physical_offset for e in ours.chain(key)]


@given(entered(), st.integers(0, 2**42), st.integers(0, 2**42))
def test_a_time_range_loses_nothing_that_is_in_it(entries, begin_ms, length):
    """The caller drops the rest: entries know their time by the second."""
    ours, data = build(entries)
    end_ms = begin_ms + length
    for key in HASH_AT:
        held = [
            (offset, now) for k, offset, now in entries[: CAPACITY - 1] if index_hash(k) == index_hash(key)
        ]
        wanted = [offset for offset, now in reversed(held) if begin_ms <= now <= end_ms]
        found = looked_up(data, key, begin_ms, end_ms)
        assert set(wanted) <= set(found)
        assert is_subsequence(found, [e.physical_offset for e in ours.chain(key)])


def is_subsequence(part: list[int], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


@given(entered(), st.data())
def test_trimmed_to_an_offset_it_is_as_if_nothing_behind_was_entered(entries, data):
    entries = entries[: CAPACITY - 1]
    offsets = [offset for _, offset, _ in entries]
    cut = data.draw(st.sampled_from([*offsets, 0, 2**62]))
    _, trimmed = build(entries)
    left = kernel.trim(trimmed, SLOTS, CAPACITY, cut)
    kept = [entry for entry in entries if entry[1] < cut]
    ours, _ = build(kept)
    assert left == len(kept)
    after = oracle.IndexFile(SLOTS, CAPACITY, trimmed)
    assert (after.header.used_slots, after.header.next_entry) == (ours.header.used_slots, len(kept) + 1)
    assert [after.slot(n) for n in range(SLOTS)] == [ours.slot(n) for n in range(SLOTS)]
    for key in HASH_AT:
        assert looked_up(trimmed, key) == [e.physical_offset for e in ours.chain(key)]


@given(entered(), st.data())
def test_a_damaged_file_leads_nowhere_else(entries, data):
    """Numbers from the file are believed only as far as they lead down a chain inside of it."""
    _, written = build(entries)
    damaged = oracle.IndexFile(SLOTS, CAPACITY, data.draw(damage(bytes(written))))
    for key in HASH_AT:
        chain = [e.physical_offset for e in damaged.chain(key)]
        found = looked_up(bytes(damaged.data), key)
        assert is_subsequence(found, chain)
        assert found == chain or damaged.header.begin_ms > 2**60  # no entry is later than the range's end


FILE_BYTES = oracle.file_bytes(SLOTS, CAPACITY)


@given(st.binary(min_size=FILE_BYTES, max_size=FILE_BYTES), INT64, INT64, INT64)
def test_any_bytes_can_be_searched_trimmed_and_added_to(data, begin_ms, end_ms, offset):
    for key in HASH_AT:
        chain = [e.physical_offset for e in oracle.IndexFile(SLOTS, CAPACITY, data).chain(key)]
        assert is_subsequence(looked_up(data, key, begin_ms, end_ms), chain)
    grown = bytearray(data)
    kernel.put(grown, SLOTS, CAPACITY, index_hash("T#1"), offset, end_ms)
    shrunk = bytearray(data)
    left = kernel.trim(shrunk, SLOTS, CAPACITY, offset)
    file = oracle.IndexFile(SLOTS, CAPACITY, data)
    expected = file.header.next_entry - 1
    while expected and file.entry(expected).physical_offset >= offset:
        expected -= 1
    assert left == expected


@given(st.binary(max_size=700), st.integers(0, 200), st.integers(0, 200))
def test_a_file_of_another_length_is_refused(data, slots, capacity):
    fits = slots > 0 and capacity > 1 and len(data) == oracle.file_bytes(slots, capacity)
    if not fits:
        with pytest.raises(ValueError, match="index file"):
            kernel.lookup(data, slots, capacity, 0, *FOREVER)


def test_a_cyclic_chain_ends():
    ours, data = build([("T#1", 100 * n, 1000 * n) for n in range(1, 6)])
    number = ours.slot(index_hash("T#1") % SLOTS)
    at = oracle.HEADER_BYTES + oracle.SLOT_BYTES * SLOTS + oracle.ENTRY_BYTES * number + 16
    for previous in (number, number + 1, CAPACITY, -1, 2**31 - 1):
        struct.pack_into(">i", data, at, previous)
        assert looked_up(data, "T#1") == [500]
