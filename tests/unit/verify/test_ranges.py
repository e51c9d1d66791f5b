"""Goal: a store verified in parts shows the damage that one walk over it shows, wherever it is cut. Method: stores
with each kind of damage, cut into ranges from a fraction of a record to the whole log."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from cystore.recovery.walk.index_reader import list_index
from cystore.recovery.walk.log_reader import LogReader
from cystore.recovery.walk.queue_reader import list_queues
from cystore.verify import Bounds, verify
from cystore.verify.bounds import bounds_at_rest
from cystore.verify.ranges import (
    joined_damage,
    split,
    verify_index_file,
    verify_queue,
    verify_range,
    without_false_borders,
)
from tests.oracle import queue
from tests.oracle.record import ROCKETMQ_MAGIC, encode
from tests.support.property import stores
from tests.support.recovery_stores import FILE_BYTES, fingerprint, make_records, write
from tests.unit.recovery.test_queues import damage_entry

ENTRY = queue.ENTRY_BYTES
ALL_CUTS = (50, 333, 1000, FILE_BYTES, 1 << 20)
# Half of a record's bytes takes three times as long as all others together: one test of `make test` has all lengths.
CUTS = {"cystore": ALL_CUTS[1:], "long": ALL_CUTS}.get(
    os.environ.get("CYSTORE_HYPOTHESIS", ""), (333, 1 << 20)
)

pytestmark = pytest.mark.sampled(2)  # each case compares whole stores


def in_parts(store, range_bytes: int, bounds: Bounds | None = None, *, abnormal: bool = False):
    """The findings of all parts together."""
    root, config = store.path, store.config
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    found = []
    if bounds is None:
        bounds, found = bounds_at_rest(root, config, reader, abnormal=abnormal)
    seen = [verify_range(root, config, bounds, *part) for part in split(bounds, range_bytes)]
    assert all(part.position == part.end for part in seen)
    assert [part.end for part in seen[:-1]] == [part.begin for part in seen[1:]]
    found += [damage for part in seen for damage in part.damage]
    broken = [each for part in seen for each in part.broken]
    queues = {key: [] for key in list_queues(root, config.mapped_file_size_consume_queue_bytes, [])[0]}
    for part in seen:
        for one in part.queues:
            queues.setdefault(one.key, []).append(one)
    for key, spans in queues.items():
        found += verify_queue(root, config, bounds, broken, key, spans)
    for index in list_index(root, config)[0]:
        found += verify_index_file(root, config, bounds, index.path.name)
    whole = joined_damage(reader, found)
    reader.close()
    return [place(damage) for damage in whole]


def place(damage):
    return damage.kind, damage.path.name, damage.begin, damage.end, damage.reason


def assert_agrees(store, *, bounds=None, abnormal=False, sizes=CUTS):
    before = fingerprint(store.path)
    expected = sorted(
        place(damage) for damage in verify(store.path, store.config, bounds=bounds, abnormal=abnormal)
    )
    for size in sizes:
        assert sorted(in_parts(store, size, bounds, abnormal=abnormal)) == expected, size
    assert fingerprint(store.path) == before
    return expected


@pytest.fixture(params=["cystore", "rocketmq"])
def store(request, tmp_path):
    more = {"magic": ROCKETMQ_MAGIC} if request.param == "rocketmq" else {}
    return write(tmp_path / "s", make_records(120, **more), durable=-1, clean=True)


def test_a_sound_store(store):
    assert assert_agrees(store) == []


@pytest.mark.parametrize("derived", [0, 30, 119])
def test_entries_that_are_not_there_yet_after_a_crash(tmp_path, derived):
    crashed = write(tmp_path / "s", make_records(120), durable=-1, derived=derived)
    assert assert_agrees(crashed, abnormal=True) == []


@pytest.mark.parametrize("numbers", [(70,), (0, 1, 33, 70, 118), tuple(range(20, 60)), (27, 28, 29, 30)])
def test_damaged_records(store, numbers):
    for number in numbers:
        store.flip(store.records[number], 95)
    assert assert_agrees(store, sizes=ALL_CUTS)


def test_a_missing_segment(store):
    store.file_of(FILE_BYTES).unlink()
    assert assert_agrees(store)


def test_what_recovery_would_cut(store):
    store.overwrite(store.end, b"garbage that is no record")
    assert assert_agrees(store)


@pytest.mark.parametrize("numbers", [(0,), (9, 10), (12, 13, 14, 17), tuple(range(5, 35))])
def test_damaged_queue_entries(store, numbers):
    for number in numbers:
        damage_entry(store, 1, number, b"\1\2\3\4", 16)
    assert assert_agrees(store)


def test_entries_behind_the_last_record(store):
    path = store.queue_file(1, 4 * stores.SMALL.queue_file_bytes)
    path.write_bytes((b"\0" * 7 + b"\5" + b"\0\0\0\7" + bytes(8)).ljust(stores.SMALL.queue_file_bytes, b"\0"))
    assert assert_agrees(store)


@pytest.mark.parametrize("queue_id", [0, 2])
def test_a_missing_queue(store, queue_id):
    for path in (store.path / "consumequeue" / "T" / str(queue_id)).iterdir():
        path.unlink()
    assert assert_agrees(store)


def test_a_queue_that_lost_its_last_file(store):
    sorted((store.path / "consumequeue" / "T" / "1").iterdir())[-1].unlink()
    assert assert_agrees(store)


@pytest.mark.parametrize("gap", [1, 50])
def test_records_whose_queue_offset_is_not_the_next_one(tmp_path, gap):
    records = make_records(120)
    for number in range(60, 120, 3):
        records[number] = replace(records[number], queue_offset=number // 3 + gap)
    assert assert_agrees(write(tmp_path / "s", records, durable=-1, clean=True, derived=0))


@pytest.mark.parametrize(("at", "bit"), [(0, 3), (19, 3)])
@pytest.mark.parametrize("number", [1, 7, 18])
def test_damaged_index_entries(store, at, bit, number):
    path = sorted((store.path / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[40 + 4 * stores.SMALL.slots + 20 * number + at] ^= bit
    path.write_bytes(content)
    assert assert_agrees(store)


def test_an_index_entry_that_leads_elsewhere_costs_its_own_record_only(store):
    """One walk does not find its way back from an entry that leads far ahead; a range does, at its border."""
    path = sorted((store.path / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    content[40 + 4 * stores.SMALL.slots + 20 * 7 + 4] ^= 0x01
    path.write_bytes(content)
    whole = [damage for damage in verify(store.path, store.config) if damage.kind == "index"]
    parts = in_parts(store, 333)
    assert whole and parts and {kind for kind, *_ in parts} == {"index"}
    assert max(end for *_, end, _ in parts) <= max(damage.end for damage in whole)


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_missing_index_file(store, number):
    sorted((store.path / "index").iterdir())[number].unlink()
    assert assert_agrees(store)


def test_while_others_append_only_what_is_dispatched_is_compared(store):
    damage_entry(store, 1, 39, bytes(ENTRY))
    bounds = Bounds(0, store.end, store.records[80].physical_offset, complete=False)
    assert assert_agrees(store, bounds=bounds) == []
    store.flip(store.records[100], 95)
    assert assert_agrees(store, bounds=bounds)


def test_a_body_that_holds_what_looks_like_a_record_is_no_border(tmp_path):
    """The range that ends there overruns its end; it and the next are looked at again as one."""
    records = make_records(30)
    inside = write(tmp_path / "plain", records, durable=-1, clean=True).records[10].physical_offset + 88
    forged = encode(replace(make_records(1, body=10)[0], physical_offset=inside)).raw
    records[10] = replace(records[10], body=forged)
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    bounds = Bounds(0, store.end, store.end, complete=True)
    parts, seen, rounds = [(0, inside), (inside, inside + 5), (inside + 5, store.end)], [], 0
    assert verify_range(store.path, store.config, bounds, *parts[0]).position > inside
    while parts:
        seen, parts = without_false_borders(
            [*seen, *(verify_range(store.path, store.config, bounds, *part) for part in parts)]
        )
        rounds += 1
    assert rounds == 2
    assert sum(part.records for part in seen) == 30
    assert not [damage for part in seen for damage in part.damage]


@pytest.mark.parametrize("seed", range(12))
def test_bytes_damaged_at_random(tmp_path, seed):
    rng = random.Random(seed)
    store = write(tmp_path / "s", make_records(120, queues=rng.choice((1, 3, 7))), durable=-1, clean=True)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(store.end - 20)
        base = at - at % FILE_BYTES
        at = min(at, base + FILE_BYTES - 20)
        store.overwrite(at, rng.randbytes(rng.randrange(1, 20)))
    for _ in range(rng.randrange(3)):
        path = rng.choice(sorted((store.path / "consumequeue").rglob("0" * 10 + "*")))
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    assert_agrees(store)
