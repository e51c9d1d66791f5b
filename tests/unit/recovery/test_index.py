"""Goal: after any end of a store every key that a scan of the log finds is found, and as much of the index as is
certain is kept. Method: index files as a crash, RocketMQ's recovery or rot leaves them; recovered, opened, asked for
every key."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cystore
from cystore.recovery.index_check import IndexCheck
from cystore.recovery.scan import scan
from cystore.recovery.walk.log_reader import LogReader
from tests.oracle import index as oracle_index
from tests.oracle.checkpoint import encode as encode_checkpoint
from tests.oracle.checkpoint import parse as parse_checkpoint
from tests.oracle.record import ROCKETMQ_MAGIC
from tests.support.property import stores
from tests.support.recovery_stores import FILE_BYTES, fingerprint, make_records, write

SECTOR_BYTES = 512


def assert_every_key_is_found(store, records=None, **settings):
    records = store.records if records is None else records
    with cystore.open(store.path, **{**stores.config(store.log), **settings}) as opened:
        for record in records:
            (key,) = record.keys
            assert [m.physical_offset for m in opened.query("T", key)] == [record.physical_offset], key
        return opened.recovery


def index_files(store):
    return sorted((store.path / "index").iterdir())


def set_checkpoint(store, **fields) -> None:
    path = store.path / "checkpoint"
    path.write_bytes(encode_checkpoint(replace(parse_checkpoint(path.read_bytes()), **fields)))


def test_a_sound_index_is_left_alone_after_a_clean_close(tmp_path):
    store = write(tmp_path / "s", make_records(60), durable=-1, clean=True)
    before = fingerprint(store.path)
    state = store.recover(abnormal=False)
    assert state.dispatched == store.end
    assert fingerprint(store.path) == before


@pytest.mark.parametrize("number", [0, 1, 18, 19, 20, 37, 38, 50, 59])
def test_after_a_crash_it_is_kept_up_to_what_is_synced(tmp_path, number):
    store = write(tmp_path / "s", make_records(60), durable=-1)
    at = store.records[number].physical_offset
    set_checkpoint(store, index_synced=at)
    assert store.recover().dispatched == at
    left = [e for f in index_files(store) for e in oracle_entries(f)]
    assert left == [r.physical_offset for r in store.records[:number]]
    assert_every_key_is_found(store)
    built = stores.index_images(store.records)
    assert [f.read_bytes() for f in index_files(store)] == list(built.values())


def oracle_entries(path):
    file = oracle_index.IndexFile(stores.SMALL.slots, stores.SMALL.capacity, path.read_bytes())
    return [file.entry(n).physical_offset for n in range(1, file.header.next_entry)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_after_a_power_cut_any_sectors_may_be_old(tmp_path, rng, seed, read_only):
    """Sectors of what was written behind the sync reached the disk, or did not, each for itself."""
    records = make_records(19, body=20)
    store = write(tmp_path / "s", records, durable=-1)
    synced = 9
    set_checkpoint(store, index_synced=store.records[synced].physical_offset)
    (new,) = stores.index_images(store.records).values()
    (old,) = stores.index_images(store.records[:synced]).values()
    (path,) = index_files(store)
    mixed = bytearray()
    for at in range(0, len(new), 64):
        mixed += rng.choice([old, new])[at : at + 64]
    # The header is in one piece, and the entry across two pieces is the kernel test's business.
    mixed[:40] = rng.choice([old, new])[:40]
    entries = 40 + 4 * stores.SMALL.slots
    for number in range(synced + 1, 20):
        begin = entries + 20 * number
        if begin // 64 != (begin + 19) // 64:
            mixed[begin : begin + 20] = rng.choice([old, new])[begin : begin + 20]
    path.write_bytes(mixed)
    before = fingerprint(store.path)
    assert_every_key_is_found(store, read_only=read_only)
    assert (fingerprint(store.path) == before) is read_only


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("what", ["all", "first", "middle", "last"])
def test_missing_files_are_made_again(tmp_path, what, clean):
    store = write(tmp_path / "s", make_records(100), durable=-1, clean=clean)
    paths = index_files(store)
    for path in {"all": paths, "first": paths[:1], "middle": paths[2:3], "last": paths[-1:]}[what]:
        path.unlink()
    assert_every_key_is_found(store)


def test_rocketmqs_crash_keeps_the_files_that_it_flushed(tmp_path):
    records = make_records(100, magic=ROCKETMQ_MAGIC)
    store = write(tmp_path / "s", records)
    flushed = store.records[45].store_timestamp_ms
    set_checkpoint(store, physic_ms=flushed, logics_ms=flushed, index_ms=flushed)
    kept = [f for f in index_files(store) if oracle_entries(f)[-1] <= store.records[45].physical_offset]
    assert 1 < len(kept) < len(index_files(store))
    last = oracle_entries(kept[-1])[-1]  # its other keys may have gone into the next file
    state = store.recover()
    assert index_files(store) == kept
    assert state.dispatched == last
    assert_every_key_is_found(store)


def test_what_rocketmqs_recovery_did_not_enter_again_is_found_out(tmp_path):
    """It deletes young files after a crash and dispatches from a late place; then it was closed cleanly."""
    records = make_records(100, magic=ROCKETMQ_MAGIC)
    store = write(tmp_path / "s", records, clean=True)
    for path in index_files(store):
        path.unlink()
    kept, late = stores.index_images(store.records[:19]), stores.index_images(store.records[60:])
    renamed = {path.replace("index/2024", "index/2025"): data for path, data in late.items()}
    stores.write_files(store.path, {**kept, **renamed})
    assert_every_key_is_found(store)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("at", "data"),
    [
        (36, (3).to_bytes(4, "big")),
        (36, (19).to_bytes(4, "big")),
        (36, (2**31 - 1).to_bytes(4, "big")),
        (36, b"\xff" * 4),
        (16, (1 << 40).to_bytes(8, "big")),
        (24, (1).to_bytes(8, "big")),
        (24, (1 << 40).to_bytes(8, "big")),
        (0, bytes(40)),
    ],
)
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_header_is_found_out(tmp_path, clean, at, data, number):
    store = write(tmp_path / "s", make_records(100), durable=-1, clean=clean)
    path = index_files(store)[number]
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    assert_every_key_is_found(store)


@pytest.mark.parametrize("index_synced", [1, 2**40, -5, 123])
def test_a_damaged_index_watermark_is_not_believed(tmp_path, index_synced):
    store = write(tmp_path / "s", make_records(60), durable=-1, derived=30)
    set_checkpoint(store, index_synced=index_synced)
    assert_every_key_is_found(store)


def test_without_an_index_none_is_looked_at(tmp_path):
    store = write(tmp_path / "s", make_records(60), durable=-1, clean=True)
    for path in index_files(store):
        path.write_bytes(b"nothing")
    assert store.recover(abnormal=False, message_index_enable=False).dispatched == store.end


def test_a_log_without_keys_needs_no_index(tmp_path):
    records = [replace(r, raw_properties=b"") for r in make_records(60)]
    store = write(tmp_path / "s", records, durable=-1, clean=True)
    assert not (store.path / "index").exists() or not index_files(store)
    assert store.recover(abnormal=False).dispatched == store.end


def test_files_below_the_logs_minimum_do_no_harm(tmp_path):
    store = write(tmp_path / "s", make_records(120), durable=-1, clean=True)
    store.file_of(0).unlink()
    left = [r for r in store.records if r.physical_offset >= FILE_BYTES]
    state = store.recover(abnormal=False)
    assert state.dispatched == store.end
    assert_every_key_is_found(store, left)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "part", ["slot", "first entry", "entry", "last entry", "key hash", "place", "seconds", "chain"]
)
@pytest.mark.parametrize(
    ("number", "clean"), [(0, False), (0, True), (2, False), (2, True), (-1, False), (-1, True)]
)
def test_a_flipped_bit_is_found_out(tmp_path, rng, clean, part, number):
    """Entries are compared with the keys of the log, and slots with the entries, from where the walk begins: after a
    clean close of a small log that is its beginning."""
    store = write(tmp_path / "s", make_records(100), durable=-1, clean=clean)
    set_checkpoint(store, index_synced=store.end)
    path = index_files(store)[number]
    content = bytearray(path.read_bytes())
    entries = 40 + 4 * stores.SMALL.slots
    count = int.from_bytes(content[36:40], "big")
    one = {"first entry": 1, "last entry": count - 1}.get(
        part, rng.randrange(2 if part == "seconds" else 1, count)
    )
    at = entries + 20 * one
    begin, end = {
        "slot": (40, entries),
        "key hash": (at, at + 4),
        "place": (at + 4, at + 12),
        "seconds": (at + 12, at + 16),
        "chain": (at + 16, at + 20),
    }.get(part, (at, at + 12))
    content[rng.randrange(begin, end)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    assert_every_key_is_found(store)
    built = stores.index_images(store.records)
    assert [f.read_bytes() for f in index_files(store)] == list(built.values())


def test_entries_that_no_record_stands_behind_are_cut(tmp_path):
    """Dispatch begins again before what the index had: what it has beyond that is not believed."""
    store = write(tmp_path / "s", make_records(19), durable=-1)
    set_checkpoint(store, index_synced=store.end)
    (path,) = index_files(store)
    content = bytearray(path.read_bytes())
    entries = 40 + 4 * stores.SMALL.slots
    content[entries + 20 * 9 : entries + 20 * 10] = bytes(20)
    path.write_bytes(content)
    queue = store.queue_file(0, 0)
    queue.write_bytes(queue.read_bytes()[:60] + bytes(len(queue.read_bytes()) - 60))
    assert_every_key_is_found(store)
    built = stores.index_images(store.records)
    assert [f.read_bytes() for f in index_files(store)] == list(built.values())


@pytest.mark.parametrize("clean", [True, False])
def test_log_is_read_once_for_queues_and_index(tmp_path, monkeypatch, clean):
    store = write(tmp_path / "s", make_records(100), durable=-1, clean=clean)
    set_checkpoint(store, index_synced=store.end)
    read: list[int] = []
    whole_files = LogReader.read_files_into

    def counted(reader, base, buffer):
        count = whole_files(reader, base, buffer)
        read.extend(range(base, base + count, reader.file_bytes))
        return count

    monkeypatch.setattr(LogReader, "read_files_into", counted)
    store.recover(abnormal=not clean)
    assert read == [int(path.name) for path in sorted((store.path / "commitlog").glob("0*"))]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [*range(60), 819])
def test_walk_over_the_log_finds_in_the_index_what_a_second_walk_finds(tmp_path, rng, monkeypatch, seed):
    """The same damage, once compared on the way and once by a walk of its own."""
    store = write(tmp_path / "s", make_records(100), durable=-1, clean=seed % 2 == 0)
    set_checkpoint(store, index_synced=rng.choice([store.end, store.end, store.records[70].physical_offset]))
    for path in rng.sample(
        [*index_files(store), store.file_of(0), store.file_of(store.end - 1)], rng.randrange(3)
    ):
        content = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    config = replace(store.config, check_at_load_bytes=rng.choice([0, 1 << 30]))
    found = scan(store.path, config, abnormal=seed % 2 == 1)
    monkeypatch.setattr(IndexCheck, "begin", lambda check, walked: None)
    assert found == scan(store.path, config, abnormal=seed % 2 == 1)
