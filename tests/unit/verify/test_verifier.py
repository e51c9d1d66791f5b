"""Goal: verify finds every kind of damage, names its place, and finds nothing in a sound store. Method: sound stores
of every golden shape, recovered ones, and one damage at a time."""

from __future__ import annotations

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.recovery.apply import drop_derived
from cystore.verify import Bounds, verify
from cystore.verify.record_walk import Comparison
from tests.golden.conftest import unpack_golden as unpack_golden
from tests.oracle import queue
from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.stores import NAMES
from tests.support.property import stores
from tests.support.recovery_stores import FILE_BYTES, fingerprint, make_records, write
from tests.unit.recovery.test_queues import assert_queues_follow, damage_entry

ENTRY = queue.ENTRY_BYTES


def found(store, **more):
    before = fingerprint(store.path)
    out = [
        (d.kind, d.path.name, d.begin, d.end)
        for d in verify(store.path, store.config, **{"abnormal": False, **more})
    ]
    assert fingerprint(store.path) == before
    return out


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "s", make_records(120), durable=-1, clean=True)


def test_a_sound_store_has_none(store):
    assert found(store) == []


@pytest.mark.parametrize("derived", [0, 30, 119])
def test_entries_that_are_not_there_yet_are_no_damage_after_a_crash(tmp_path, derived):
    store = write(tmp_path / "s", make_records(120), durable=-1, derived=derived)
    assert found(store, abnormal=True) == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_golden_stores_are_sound_once_recovered(unpack_golden, name):
    golden = unpack_golden(name)
    config = cystore_config(golden.spec)
    with cystore.open(golden.store, **config) as opened:
        holes = opened.stats()["holes"]
    damaged = list(verify(golden.store, StoreConfig(**config)))
    assert [(d.begin, d.end) for d in damaged] == holes
    assert all("known hole" in d.reason for d in damaged)


def test_a_damaged_record_with_good_ones_behind(store):
    bad = store.records[70]
    store.flip(bad)
    (damaged,) = verify(store.path, store.config)
    assert (damaged.kind, damaged.path, damaged.reason) == (
        "record",
        store.file_of(bad.physical_offset),
        "bad checksum",
    )
    assert (damaged.begin, damaged.end) == (bad.physical_offset, bad.end)


def test_every_damaged_record_is_named(store):
    numbers = [0, 1, 33, 70, 118]
    for number in numbers:
        store.flip(store.records[number])
    ranges = [(begin, end) for kind, _, begin, end in found(store) if kind == "record"]
    first, *rest = [(store.records[n].physical_offset, store.records[n].end) for n in numbers]
    assert ranges == [(first[0], rest[0][1]), *rest[1:]]


def test_what_recovery_would_cut(store):
    store.overwrite(store.end, b"garbage that is no record")
    assert found(store) == [("record", store.file_of(store.end).name, store.end, store.end + 25)]


def test_a_missing_file(store):
    store.file_of(FILE_BYTES).unlink()
    assert ("record", f"{FILE_BYTES:020d}", FILE_BYTES, 2 * FILE_BYTES) in found(store)


@pytest.mark.parametrize("number", [0, 9, 10, 39])
@pytest.mark.parametrize(("at", "data"), [(0, b"\1"), (8, b"\1"), (16, b"\1\2\3\4"), (0, bytes(ENTRY))])
def test_a_damaged_queue_entry(store, number, at, data):
    damage_entry(store, 1, number, data, at)
    base = number * ENTRY // stores.SMALL.queue_file_bytes * stores.SMALL.queue_file_bytes
    begin = number * ENTRY - base
    assert found(store) == [("consume_queue", f"{base:020d}", begin, begin + ENTRY)]


def test_a_run_of_damaged_entries_is_one_range(store):
    for number in (12, 13, 14, 17):
        damage_entry(store, 1, number, bytes(ENTRY))
    name = f"{stores.SMALL.queue_file_bytes:020d}"
    assert found(store) == [("consume_queue", name, 40, 100), ("consume_queue", name, 140, 160)]


def test_entries_behind_the_last_record(store):
    damage_entry(store, 1, 39, queue.encode_entry(queue.HOLE))
    path = store.queue_file(1, 4 * stores.SMALL.queue_file_bytes)
    path.write_bytes((b"\0" * 7 + b"\5" + b"\0\0\0\7" + bytes(8)).ljust(stores.SMALL.queue_file_bytes, b"\0"))
    places = found(store)
    assert ("consume_queue", path.name, 0, ENTRY) in places
    assert len(places) == 2


def test_a_missing_queue(store):
    for path in (store.path / "consumequeue" / "T" / "2").iterdir():
        path.unlink()
    ((kind, *_),) = found(store)
    assert kind == "consume_queue"


@pytest.mark.parametrize("where", ["hash", "offset", "previous"])
def test_a_damaged_index_entry(store, where):
    path = sorted((store.path / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    at = 40 + 4 * stores.SMALL.slots + 20 * 7 + {"hash": 0, "offset": 9, "previous": 19}[where]
    content[at] ^= 0x03
    path.write_bytes(content)
    damaged = list(verify(store.path, store.config))
    assert damaged and all(d.kind == "index" for d in damaged)


def test_a_damaged_slot(store):
    path = sorted((store.path / "index").iterdir())[0]
    content = bytearray(path.read_bytes())
    content[43] ^= 1
    path.write_bytes(content)
    assert [kind for kind, *_ in found(store)] == ["index"]


def test_a_missing_index_file_names_the_records(store):
    paths = sorted((store.path / "index").iterdir())
    paths[2].unlink()
    ((kind, _, begin, end),) = found(store)
    assert (kind, begin, end) == ("index", store.records[38].physical_offset, store.records[56].end)


def test_while_others_append_only_what_is_dispatched_is_compared(store):
    middle = store.records[80]
    damage_entry(store, 1, 39, bytes(ENTRY))
    bounds = Bounds(0, store.end, middle.physical_offset, complete=False)
    assert found(store, bounds=bounds) == []
    store.flip(store.records[100])
    assert [kind for kind, *_ in found(store, bounds=bounds)] == ["record"]


def test_progress_is_told(store):
    told = []
    assert list(verify(store.path, store.config, progress=lambda *a: told.append(a))) == []
    assert told and all(word == "verify" and 0 <= done <= total for word, done, total in told)


def test_everything_derived_can_be_dropped_and_comes_back(store):
    (store.path / "consumequeue_ext" / "T" / "0").mkdir(parents=True)
    (store.path / "consumequeue_ext" / "T" / "0" / f"{0:020d}").write_bytes(bytes(64))
    drop_derived(store.path)
    assert not [f for f in store.path.rglob("*") if f.is_file() and f.parts[-2] in ("0", "1", "2", "index")]
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        assert opened.recovery.dispatch_from == 0
    assert found(store) == []
    assert_queues_follow(store)


@pytest.mark.parametrize("moment", ["before the first record", "behind the last record"])
def test_files_that_are_cleaned_meanwhile_are_no_damage(tmp_path, monkeypatch, moment):
    """The cleaner removes files of log, queues and index that the verification has listed and not read yet."""
    sizes = {"mapped_file_size_commit_log_bytes": FILE_BYTES, "mapped_file_size_consume_queue_bytes": 400}
    settings = {**sizes, "max_hash_slot_num": 10, "max_index_num": 20, "file_reserved_time_h": 0}
    with cystore.open(tmp_path / "s", services="none", **settings) as store:
        for number in range(300):
            store.put("T", b"x" * 100, queue_id=number % 2, keys=(f"k{number}",))
        store.dispatch()
        store.flush()
        store.clean(3)  # now queues begin with entries of expired records
        facts = store.stats()
        bounds = Bounds(facts["min_physical_offset"], facts["wrote"], facts["dispatched"], complete=False)
        cleaned, method = [], "run" if moment == "before the first record" else "spans"
        original = getattr(Comparison, method)

        def after_a_clean(compared):
            cleaned.append(store.clean().segments)
            return original(compared)

        monkeypatch.setattr(Comparison, method, after_a_clean)
        found = verify(
            store.path,
            StoreConfig(**settings),
            bounds=bounds,
            minimum=lambda: store.stats()["min_physical_offset"],
        )
        assert list(found) == []
        assert cleaned[0] > 5
        assert len(cleaned) == 1 or method == "run", "the log is not verified again for a queue's files"
