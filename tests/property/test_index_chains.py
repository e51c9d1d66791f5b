"""Goal: whatever mixture of old and new sectors of an index file a power cut leaves, its kept entries are found
again. Method: the file as it was at the last sync and as it was at the cut, sector by sector one or the other, mended
and compared with the one at the sync."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile

index_chains = pytest.importorskip("cystore._native.derived.index_chains", reason="the kernels are not built")

SECTOR_BYTES = 512


def filled(slots: int, keys: list[int]) -> IndexFile:
    file = IndexFile(slots, 200)
    for number, key in enumerate(keys):
        file.put(f"T#k{key}", number * 100, 1_700_000_000_000 + number)
    return file


def slots_of(data: bytes, slots: int) -> bytes:
    return data[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES * slots]


def entries_of(data: bytes, slots: int, first: int, end: int) -> bytes:
    at = HEADER_BYTES + SLOT_BYTES * slots
    return data[at + ENTRY_BYTES * first : at + ENTRY_BYTES * end]


@given(
    st.sampled_from([1, 2, 7, 50, 300]),
    st.lists(st.integers(0, 30), min_size=1, max_size=150),
    st.data(),
)
def test_slots_lead_to_the_kept_entries(slots, keys, data):
    synced = data.draw(st.integers(0, len(keys)))
    before, after = filled(slots, keys[:synced]), filled(slots, keys)
    mixed = bytearray()
    for at in range(0, len(before.data), SECTOR_BYTES):
        source = data.draw(st.sampled_from([before, after]))
        mixed += source.data[at : at + SECTOR_BYTES]
    keep = synced + 1
    # Entries below the sync are the same in both.
    assert entries_of(mixed, slots, 1, keep) == entries_of(before.data, slots, 1, keep)
    found = bytearray(slots_of(mixed, slots))
    newest = index_chains.newest(found)
    tail = entries_of(mixed, slots, keep, max(newest + 1, keep))
    if index_chains.mend_slots(found, tail, keep, keep):
        index_chains.relink(found, entries_of(mixed, slots, 1, keep), 1)
    used = index_chains.settle(found)
    assert bytes(found) == slots_of(before.data, slots)
    assert used == before.header.used_slots
    rebuilt = bytearray(SLOT_BYTES * slots)
    assert index_chains.chain(rebuilt, entries_of(before.data, slots, 1, keep), 1) == -1
    assert rebuilt == found
    assert index_chains.other_slot(rebuilt, found, keep) == -1
    assert index_chains.heads(entries_of(before.data, slots, 1, keep)) == used


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_slots_in_use_are_counted_and_another_one_is_found(numbers, data):
    right, at = b"".join(struct.pack(">i", number) for number in numbers), 0
    cut = 4 * data.draw(st.integers(1, len(numbers)))
    pieces = [piece for piece in (right[:cut], right[cut:]) if piece]
    counts = []
    for piece in pieces:
        counts.append(index_chains.used(right, piece, at))
        at += len(piece) // 4
    assert sum(counts) == sum(number != 0 for number in numbers)
    other = bytearray(right)
    place = data.draw(st.integers(0, len(right) - 1))
    other[place] ^= data.draw(st.integers(1, 255))
    found = index_chains.used(right, other, 0)
    assert found == -1 or (found < sum(counts) and not any(other[place & ~3 : (place & ~3) + 4]))


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(-2, 50), st.integers(-2, 50))
def test_arbitrary_bytes_never_lead_outside(slots, entries, first, keep):
    content = bytearray(slots)
    try:
        broken = index_chains.mend_slots(content, entries, first, keep)
        index_chains.relink(content, entries, first)
        index_chains.settle(content)
        index_chains.chain(content, entries, first)
        index_chains.other_slot(content, slots, keep)
        index_chains.heads(entries)
        index_chains.used(content, slots, first)
    except ValueError:
        return
    assert 0 <= broken <= len(slots) // 4
    if len(entries) >= ENTRY_BYTES * (keep - first):
        return


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), st.data())
def test_a_changed_entry_or_slot_is_seen(keys, data):
    file = filled(5, keys)
    end = file.header.next_entry
    content = bytearray(file.data)
    at = HEADER_BYTES + SLOT_BYTES * 5 + ENTRY_BYTES * data.draw(st.integers(1, end - 1)) + 16
    content[at + 3] ^= data.draw(st.integers(1, 255))
    rebuilt = bytearray(SLOT_BYTES * 5)
    assert index_chains.chain(rebuilt, entries_of(content, 5, 1, end), 1) >= 1
    rebuilt = bytearray(SLOT_BYTES * 5)
    assert index_chains.chain(rebuilt, entries_of(file.data, 5, 1, end), 1) == -1
    stored = bytearray(slots_of(file.data, 5))
    used = data.draw(st.sampled_from([i for i in range(5) if any(stored[4 * i : 4 * i + 4])]))
    stored[4 * used : 4 * used + 4] = bytes(4)
    assert index_chains.other_slot(rebuilt, stored, end) == used
