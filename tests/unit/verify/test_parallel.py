"""Goal: where a store at rest ends is told without recovery's walk only where that walk would end it there too, so
comparing it in parts finds what `verify` finds. Method: each state and each kind of damage, and damage at random
places of the log, queues, index and checkpoint; what the parts say is set beside `verify`, and their bounds beside
those of the walk."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.recovery.walk.log_reader import LogReader
from cystore.verify import verify
from cystore.verify.bounds import Bounds, bounds_at_rest, likely_bounds
from cystore.verify.parallel import VerifyParts, verify_at_rest
from cystore.verify.ranges import joined_damage
from tests.oracle.record import ROCKETMQ_MAGIC
from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.stores import NAMES, unpack_or_skip
from tests.support.recovery_stores import FILE_BYTES, fingerprint, make_records, write
from tests.support.small_stores import SETTINGS
from tests.unit.recovery.test_queues import damage_entry

pytestmark = pytest.mark.unsanitized  # processes that verify parts; test_ranges.py has the kernels' way

SEEDS = range(40) if os.environ.get("CYSTORE_HYPOTHESIS") == "quick" else range(400)
BEGIN = 5 * FILE_BYTES
# Closed, and nothing behind the last entry of a queue; of the others RocketMQ was killed, or the log's first files
# were removed.
TOLD = ("a_clean", "c_delay", "d_ext", "e_batch", "g_ipv6", "h_multi_index", "i_transaction", "k_edge")


def here(what, parts, work):
    """Workers that are this process."""
    return [work(part) for part in parts]


def range_of(log_bytes: int) -> int:
    """A few records; of a golden log some sixty ranges."""
    return max(1000, log_bytes // 60)


def is_told(root: Path, config: StoreConfig, *, abnormal: bool = False, ranges=range_of) -> bool:
    """Whether the end is told without the walk; where it is, the walk must say the same."""
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    bounds = likely_bounds(root, config, reader, abnormal=abnormal)
    if bounds is None:
        return False
    told = VerifyParts(root, config, bounds, ranges, here).confirmed()
    if told:
        assert bounds_at_rest(root, config, reader, abnormal=abnormal) == (bounds, [])
    reader.close()
    return told


def in_parts(root: Path, config: StoreConfig, *, abnormal: bool) -> tuple[Bounds, list[str]]:
    work, damage = verify_at_rest(root, config, range_of, here, abnormal=abnormal)
    return work.bounds, sorted(map(str, damage))


def after_the_walk(root: Path, config: StoreConfig, *, abnormal: bool) -> tuple[Bounds, list[str]]:
    """The same with recovery's walk before it."""
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    bounds, behind = bounds_at_rest(root, config, reader, abnormal=abnormal)
    work = VerifyParts(root, config, bounds, range_of, here)
    damage = joined_damage(reader, [*behind, *work.damage])
    reader.close()
    return bounds, sorted(map(str, damage))


def assert_same(root: Path, config: StoreConfig, *, abnormal: bool = False) -> list[str]:
    """The damage, which is that of every other way; nothing on disk changes."""
    before = fingerprint(root)
    found = in_parts(root, config, abnormal=abnormal)
    assert found == after_the_walk(root, config, abnormal=abnormal)
    assert fingerprint(root) == before
    return found[1]


def assert_as_verify(store, *, abnormal: bool = False) -> list[str]:
    found = assert_same(store.path, store.config, abnormal=abnormal)
    assert found == sorted(map(str, verify(store.path, store.config, abnormal=abnormal)))
    return found


@pytest.fixture(params=["cystore", "rocketmq"])
def store(request, tmp_path):
    more = {"magic": ROCKETMQ_MAGIC} if request.param == "rocketmq" else {}
    durable = -1 if request.param == "cystore" else None  # RocketMQ keeps no watermark: the queues tell
    return write(tmp_path / "s", make_records(120, **more), durable=durable, clean=True)


@pytest.mark.parametrize("begin", [0, BEGIN])
@pytest.mark.parametrize("magic", [None, ROCKETMQ_MAGIC])
def test_a_sound_store_that_was_closed_needs_no_walk(tmp_path, begin, magic):
    records = make_records(120, **({} if magic is None else {"magic": magic}))
    store = write(tmp_path / "s", records, durable=None if magic else -1, clean=True, begin=begin)
    assert is_told(store.path, store.config)
    assert assert_as_verify(store) == []


def test_one_that_our_own_writer_closed_needs_none_either(tmp_path):
    with cystore.open(tmp_path / "s", **SETTINGS) as store:
        store.put_many([cystore.Message(topic="T", body=b"%d" % n, keys=(f"k{n}",)) for n in range(300)])
    config = StoreConfig(**{**SETTINGS, "services": ()})
    assert is_told(tmp_path / "s", config)
    assert assert_same(tmp_path / "s", config) == []


def test_after_a_crash_with_all_synced_none_is_needed(tmp_path):
    store = write(tmp_path / "s", make_records(120), durable=-1, derived=90)
    assert is_told(store.path, store.config, abnormal=True)
    assert assert_as_verify(store, abnormal=True) == []


@pytest.mark.parametrize("durable", [0, 40, 118])
def test_records_behind_the_watermark_are_for_the_walk(tmp_path, durable):
    store = write(tmp_path / "s", make_records(120), durable=durable)
    assert not is_told(store.path, store.config, abnormal=True)
    assert assert_as_verify(store, abnormal=True) == []


def test_an_order_of_times_ends_the_log_above_the_watermark_only(tmp_path):
    records = make_records(120)
    records[80] = replace(records[80], store_timestamp_ms=records[0].store_timestamp_ms)
    for durable, rows in ((-1, False), (60, True)):
        store = write(tmp_path / f"s{durable}", records, durable=durable)
        assert is_told(store.path, store.config, abnormal=True) is not rows
        assert bool(assert_as_verify(store, abnormal=True)) is rows


def test_an_empty_store(tmp_path):
    with cystore.open(tmp_path / "s", **SETTINGS):
        pass
    config = StoreConfig(**{**SETTINGS, "services": ()})
    assert not is_told(tmp_path / "s", config)
    assert assert_same(tmp_path / "s", config) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["garbage", "a later file", "a blank", "files ahead"])
def test_what_stands_behind_the_end(store, what):
    last = store.end - store.end % FILE_BYTES
    if what == "garbage":
        store.overwrite(store.end, b"garbage that is no record")
    elif what == "a blank":
        store.overwrite(store.end, (last + FILE_BYTES - store.end).to_bytes(4, "big") + b"\xcb\xd4\x31\x94")
    else:
        content = bytes(FILE_BYTES) if what == "files ahead" else b"\7".ljust(FILE_BYTES, b"\0")
        for number in range(1, 5):
            store.file_of(last + number * FILE_BYTES).write_bytes(content)
    assert bool(assert_as_verify(store)) is (what in ("garbage", "a later file"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [0, 3, 60, 117, 118, 119])
def test_a_damaged_record(store, number):
    store.flip(store.records[number], 95)
    assert assert_as_verify(store)


def test_a_hole_that_recovery_reported(store):
    store.flip(store.records[40], 95)
    store.recover(abnormal=False)
    (row,) = assert_as_verify(store)
    assert "known hole" in row


def test_a_missing_file_and_one_cut_short(store):
    path = store.file_of(store.end)
    path.write_bytes(path.read_bytes()[: store.end % FILE_BYTES])
    assert not is_told(store.path, store.config)
    assert assert_as_verify(store) == []
    store.file_of(FILE_BYTES).unlink()
    assert assert_as_verify(store)


@pytest.mark.parametrize("far", [1, 1 << 19, 1 << 21])
def test_a_queue_whose_first_record_is_not_the_one_that_its_entries_promise(tmp_path, far):
    """After a crash, so the entry that claims more is not damage for `verify`: far ahead of its entries a record ends
    RocketMQ's log."""
    records = make_records(60, magic=ROCKETMQ_MAGIC, first=3 * far)
    store = write(tmp_path / "s", records, durable=-1, derived=0, begin=BEGIN)
    entry = (BEGIN - 100).to_bytes(8, "big") + (91).to_bytes(4, "big") + bytes(8)
    path = store.queue_file(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(entry.ljust(store.config.mapped_file_size_consume_queue_bytes, b"\0"))
    assert is_told(store.path, store.config, abnormal=True) is (far < 1 << 20)
    assert_as_verify(store, abnormal=True)


@pytest.mark.parametrize("first", [0, 20])
def test_offsets_that_hole_entries_stand_for_are_for_the_walk(tmp_path, first):
    """Two messages of a queue are lost, its first ones or some in its middle; the list of holes is gone, its entries
    say so."""
    records = make_records(120)
    for number in range(3 * first, 120, 3):
        records[number] = replace(records[number], queue_offset=number // 3 + 2)
    if not first:
        records = [each for each in records if each.queue_id] + [
            each for each in records if not each.queue_id
        ]
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    for number in (first, first + 1):
        damage_entry(store, 0, number, bytes(8) + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8))
    assert assert_as_verify(store) == []
    assert not is_told(store.path, store.config)
    assert not is_told(store.path, store.config, ranges=lambda log_bytes: log_bytes)  # all in one range


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(tmp_path, name):
    golden = unpack_or_skip(name, tmp_path)
    config = StoreConfig(**cystore_config(golden.spec))
    abnormal = (golden.store / "abort").exists()
    told = is_told(golden.store, config, abnormal=abnormal)
    assert told is (name in TOLD)
    found = assert_same(golden.store, config, abnormal=abnormal)
    assert bool(found) == bool(list(verify(golden.store, config, abnormal=abnormal)))


def spoil(rng: random.Random, root: Path) -> None:
    """Damage at a random place of some file of the store."""
    path = rng.choice(sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size))
    kind = rng.choice(("bit", "bytes", "zeros", "cut", "gone", "copied"))
    content = bytearray(path.read_bytes())
    at, count = rng.randrange(len(content)), rng.randrange(1, 40)
    if kind == "bit":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        content[at : at + count] = rng.randbytes(min(count, len(content) - at))
    elif kind == "zeros":
        content[at:] = bytes(len(content) - at)
    elif kind == "cut":
        del content[at:]
    elif kind == "copied":  # what stands elsewhere in the file
        other = rng.randrange(len(content))
        content[at : at + count] = content[other : other + min(count, len(content) - at)][: len(content) - at]
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_damage_anywhere(tmp_path, seed):
    """Of a store closed or crashed, ours or RocketMQ's, with or without its first records: the same rows, or the same
    error."""
    rng = random.Random(seed)
    magic = rng.choice(({}, {"magic": ROCKETMQ_MAGIC}))
    records = make_records(rng.choice((7, 60, 120)), queues=rng.choice((1, 3, 7)), **magic)
    abnormal = rng.random() < 0.5
    store = write(
        tmp_path / "s",
        records,
        durable=rng.choice((None, -1, -1, rng.randrange(len(records)))),
        clean=not abnormal,
        derived=rng.choice((None, rng.randrange(len(records)))) if abnormal else None,
        begin=rng.choice((0, BEGIN)),
    )
    config = replace(
        store.config,
        damaged_range=rng.choice(("keep", "keep", "truncate")),
        check_at_load_bytes=rng.choice((0, 0, 1 << 30)),
    )
    for _ in range(rng.randrange(4)):
        spoil(rng, store.path)
    outcomes = []
    for way in (in_parts, after_the_walk):
        try:
            outcomes.append(way(store.path, config, abnormal=abnormal))
        except cystore.StoreError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
    if not isinstance(outcomes[0], type):
        is_told(store.path, config, abnormal=abnormal)
