"""Goal: damage in the middle of a log costs the damaged record and nothing else. Method: the torn golden
stores, opened with cystore's default rule (`damaged_range="keep"`), compared with the undamaged store they
were made from."""

import base64
import json

import pytest

import cystore
from tests.oracle import queue
from tests.oracle import store as oracle
from tests.support.golden.answers import as_row, queue_messages
from tests.support.golden.cystore_config import cystore_config


@pytest.fixture
def whole(unpack_golden) -> oracle.View:
    return oracle.recover(oracle.read_directory(unpack_golden("b_crash").store))


@pytest.fixture
def torn(unpack_golden, whole):
    return unpack_golden("f3_torn_middle")


@pytest.mark.parametrize("read_only", [True, False], ids=["read_only", "writable"])
def test_the_good_records_behind_damage_stay(torn, whole, read_only):
    bad = torn.spec["badRecord"]
    lost = whole.by_offset[bad]
    with cystore.open(torn.store, read_only=read_only, **cystore_config(torn.spec)) as store:
        assert [m.physical_offset for m in store.scan()] == [
            r.physical_offset for r in whole.records if r.physical_offset != bad
        ]
        for key, live in whole.queues.items():
            found = {m.queue_offset: as_row(m) for m in queue_messages(store, *key)}
            expected = {o: r for o, r in whole.queue_messages(key).items() if r is not lost}
            assert list(found) == list(expected)
            assert [row["bodyB64"] for row in found.values()] == [
                base64.b64encode(r.body).decode() for r in expected.values()
            ]
            assert store.get(*key, live.maximum).max_offset == live.maximum
            for message in expected.values():
                asked = message.store_timestamp_ms
                assert store.offset_by_time(*key, asked) == min(
                    o for o, m in expected.items() if m.store_timestamp_ms == asked
                )
        for key in lost.index_keys:
            expected = [r.physical_offset for r in whole.query(lost.topic, key, 100) if r is not lost]
            assert [m.physical_offset for m in store.query(lost.topic, key, 100)] == expected


def test_the_lost_offset_is_stepped_over(torn, whole):
    lost = whole.by_offset[torn.spec["badRecord"]]
    with cystore.open(torn.store, **cystore_config(torn.spec)) as store:
        alone = store.get(lost.topic, lost.queue_id, lost.queue_offset, 1)
        assert [m.queue_offset for m in alone.messages] in ([], [lost.queue_offset + 1])
        assert alone.next_offset > lost.queue_offset
        around = store.get(lost.topic, lost.queue_id, lost.queue_offset - 1, 3)
        assert lost.queue_offset not in [m.queue_offset for m in around.messages]
        assert around.messages[0].queue_offset == lost.queue_offset - 1
    entries = oracle.read_directory(torn.store).entries[lost.topic, lost.queue_id]
    assert entries[lost.queue_offset] == queue.HOLE


def test_the_damaged_bytes_are_put_aside_and_reported(torn, whole):
    lost = whole.by_offset[torn.spec["badRecord"]]
    log = oracle.read_directory(torn.store).log
    base = lost.physical_offset - lost.physical_offset % log.file_size
    damaged = log.files[base][lost.physical_offset - base :][: lost.size]
    with cystore.open(torn.store, **cystore_config(torn.spec)):
        pass
    quarantine = torn.store / "quarantine"
    holes = json.loads((quarantine / "holes.json").read_text(encoding="utf-8"))
    numbers = json.dumps(holes)
    assert str(lost.physical_offset) in numbers and str(lost.end) in numbers
    aside = [p.read_bytes() for p in quarantine.iterdir() if p.name != "holes.json"]
    assert damaged in aside


def test_holes_are_remembered_over_the_next_open(torn, whole):
    bad = torn.spec["badRecord"]
    config = cystore_config(torn.spec)
    expected = [r.physical_offset for r in whole.records if r.physical_offset != bad]
    for read_only in (False, True, False):
        with cystore.open(torn.store, read_only=read_only, **config) as store:
            assert [m.physical_offset for m in store.scan()] == expected


def test_a_torn_tail_is_cut_and_put_aside(unpack_golden, whole):
    torn = unpack_golden("f1_torn_tail_zeroed")
    bad = torn.spec["badRecord"]
    log = oracle.read_directory(torn.store).log
    base = bad - bad % log.file_size
    half = log.files[base][bad - base :].rstrip(b"\0")
    with cystore.open(torn.store, **cystore_config(torn.spec)) as store:
        assert [m.physical_offset for m in store.scan()] == [
            r.physical_offset for r in whole.records if r.physical_offset < bad
        ]
    after = oracle.read_directory(torn.store).log.files[base]
    assert after[bad - base :] == bytes(log.file_size - (bad - base))
    aside = [p.read_bytes() for p in (torn.store / "quarantine").iterdir() if p.name != "holes.json"]
    assert any(half in piece for piece in aside)
