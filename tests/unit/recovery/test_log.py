"""Goal: after a crash the log ends where docs/recovery.md says, and nothing is destroyed that was not put aside.
Method: each crash state of that page is written byte by byte, recovered, and compared; read-only recovery must say
the same and change nothing."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.engine.files.segments import Mode
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges, write_damaged_ranges
from cystore.errors import StoreFormatError, StoreIOError
from cystore.recovery.recover import recover
from tests.oracle.checkpoint import Checkpoint
from tests.oracle.checkpoint import encode as encode_checkpoint
from tests.oracle.record import ROCKETMQ_MAGIC, encode, encode_blank
from tests.support.property import stores
from tests.support.recovery_stores import (
    FILE_BYTES,
    NOW_MS,
    aside,
    fingerprint,
    log_bytes,
    make_records,
    write,
)


@pytest.fixture
def both(tmp_path):
    """Recovers read-only first, checks that no byte changed, then for real; both must agree."""

    def run(store, **settings):
        before = fingerprint(store.path)
        private = store.recover(mode=Mode.PRIVATE, **settings)
        assert fingerprint(store.path) == before
        state = store.recover(**settings)
        for name in ("min_physical_offset", "wrote", "dispatched", "last_record", "watermark", "queues"):
            assert getattr(private, name) == getattr(state, name), name
        assert private.damaged_ranges.ranges() == state.damaged_ranges.ranges()
        return state

    return run


def assert_zero_behind(store, end: int) -> None:
    for name, data in log_bytes(store.path).items():
        behind = max(end - int(name), 0)
        assert not any(data[behind:]), name


def test_a_whole_log_ends_behind_its_last_record(tmp_path, both):
    store = write(tmp_path / "s", make_records(90), durable=-1)
    state = both(store)
    assert (state.wrote, state.last_record) == (store.end, store.records[-1].physical_offset)
    assert state.last_record_checksum == store.records[-1].checksum
    assert state.last_store_timestamp_ms == store.records[-1].store_timestamp_ms
    assert state.watermark == store.end
    assert state.report.clean and not aside(store.path)


def test_without_a_log_nothing_that_followed_from_it_stays(tmp_path, both):
    """Somebody removed the commit log: queues and index speak of records that are gone (CommitLog.recoverNormally)."""
    store = write(tmp_path / "s", make_records(30), durable=-1)
    for base in store.log.files:
        store.file_of(base).unlink()
    state = both(store)
    assert (state.min_physical_offset, state.wrote, state.dispatched) == (0, 0, 0)
    assert state.queues == []
    assert not [
        f for name in ("consumequeue", "index") for f in (store.path / name).rglob("*") if f.is_file()
    ]


def test_a_new_directory_is_an_empty_store(tmp_path):
    state = recover(tmp_path, StoreConfig(), Mode.WRITE, abnormal=False)
    assert (state.wrote, state.dispatched, state.queues, state.report.clean) == (0, 0, [], True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [4, 8, 40, 90, 150])
def test_a_torn_record_above_the_watermark_is_cut_and_put_aside(tmp_path, both, keep):
    """A power cut: some of the last record's pages did not reach the disk."""
    store = write(tmp_path / "s", make_records(40), durable=30)
    last = store.records[-1]
    store.overwrite(last.physical_offset + keep, bytes(last.size - keep))
    state = both(store)
    assert state.wrote == last.physical_offset
    assert state.report.cut == (
        last.physical_offset,
        last.physical_offset + len(last.raw[:keep].rstrip(b"\0")),
    )
    assert [data.rstrip(b"\0") for data in aside(store.path).values()] == [last.raw[:keep].rstrip(b"\0")]
    assert_zero_behind(store, last.physical_offset)
    assert not state.damaged_ranges


def test_above_the_watermark_good_records_behind_a_torn_one_go_too(tmp_path, both):
    """A log is a prefix: nobody was told that these are durable."""
    store = write(tmp_path / "s", make_records(60), durable=20)
    torn = store.records[25]
    store.flip(torn)
    state = both(store)
    assert state.wrote == torn.physical_offset
    base = torn.physical_offset - torn.physical_offset % FILE_BYTES
    original = store.log.files[base][torn.physical_offset - base :].rstrip(b"\0")
    copies = aside(store.path)
    (first,) = [
        data for name, data in copies.items() if name.startswith(f"commitlog-{torn.physical_offset:020d}")
    ]
    assert len(first) == len(original) and first[101:] == original[101:]
    for later in [b for b in store.log.files if b > base]:
        assert copies[f"commitlog-{later:020d}-{later + FILE_BYTES:020d}"] == store.log.files[later]
        assert not store.file_of(later).exists()
    assert_zero_behind(store, torn.physical_offset)


def test_below_the_watermark_damage_becomes_a_hole(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=50)
    bad = store.records[20]
    store.flip(bad)
    damaged = bytearray(bad.raw)
    damaged[100] ^= 0xFF
    state = both(store)
    assert state.wrote == store.end
    assert state.damaged_ranges.ranges() == [(bad.physical_offset, bad.end)] == list(state.report.new_holes)
    assert list(aside(store.path).values()) == [bytes(damaged)]
    listed = json.loads((store.path / "quarantine" / "holes.json").read_text())["holes"]
    assert [(h["begin"], h["end"], h["reason"], h["copy"]) for h in listed] == [
        (bad.physical_offset, bad.end, "bad checksum", f"commitlog-{bad.physical_offset:020d}-{bad.end:020d}")
    ]
    assert log_bytes(store.path)[f"{0:020d}"][bad.physical_offset : bad.end] == bytes(damaged)


def test_a_known_hole_is_stepped_over_the_next_time(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=50)
    store.flip(store.records[20])
    first = both(store)
    again = both(store)
    assert again.damaged_ranges == first.damaged_ranges and again.wrote == first.wrote
    assert again.report.new_holes == () and again.report.clean
    assert len(aside(store.path)) == 1


def test_damage_beside_a_known_hole_makes_it_larger(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=50)
    store.flip(store.records[20])
    both(store)
    store.flip(store.records[21])
    state = both(store)
    assert state.damaged_ranges.ranges() == [(store.records[20].physical_offset, store.records[21].end)]
    store.flip(store.records[19])
    state = both(store)
    assert state.damaged_ranges.ranges() == [(store.records[19].physical_offset, store.records[21].end)]


def test_a_hole_may_reach_over_a_blank_into_the_next_file(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=-1)
    last_of_first = max((r for r in store.records if r.end <= FILE_BYTES), key=lambda r: r.end)
    store.overwrite(last_of_first.physical_offset, bytes(FILE_BYTES - last_of_first.physical_offset))
    state = both(store)
    assert state.damaged_ranges.ranges() == [(last_of_first.physical_offset, FILE_BYTES)]
    assert state.wrote == store.end


def test_a_missing_file_below_the_watermark_is_a_hole(tmp_path, both):
    store = write(tmp_path / "s", make_records(90), durable=-1)
    store.file_of(FILE_BYTES).unlink()
    state = both(store)
    assert state.damaged_ranges.ranges() == [(FILE_BYTES, 2 * FILE_BYTES)]
    assert state.wrote == store.end


def test_rocketmqs_rule_cuts_below_the_watermark_too(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=50)
    store.flip(store.records[20])
    state = both(store, damaged_range="truncate")
    assert state.wrote == store.records[20].physical_offset
    assert not state.damaged_ranges
    assert_zero_behind(store, state.wrote)


def test_a_lost_tail_below_the_watermark_is_reported(tmp_path, both):
    """Clean close, then the last two records rot. Their queue offsets are not used again."""
    store = write(tmp_path / "s", make_records(30), clean=True)
    for record in store.records[-2:]:
        store.flip(record)
    lost = store.records[-2]
    state = both(store, abnormal=False)
    assert state.wrote == lost.physical_offset
    assert state.report.lost == (lost.physical_offset, store.end)
    assert not state.report.clean
    assert {(q.queue_id, q.dispatched) for q in state.queues} == {(0, 10), (1, 10), (2, 10)}
    again = both(store, abnormal=False)
    assert again.wrote == state.wrote and {q.dispatched for q in again.queues} == {10}


def test_a_stale_record_left_by_a_cut_does_not_come_back(tmp_path, both):
    """Where the log was cut before, an old record stands at its own offset, whole, right behind the end."""
    old = make_records(31)
    log = write(tmp_path / "old", old).records
    store = write(tmp_path / "s", [*old[:29], make_records(30, body=60)[29]], durable=20)
    stale = log[30]
    assert stale.physical_offset == store.end
    # The new record took the stale one's queue offset in another queue's stead, so its own next one does not follow.
    forged = encode(replace(stale, queue_offset=stale.queue_offset + 1))
    store.overwrite(store.end, forged.raw)
    state = both(store)
    assert state.wrote == store.end
    assert "queue offset" in state.report.reason


def test_where_we_wrote_the_log_an_older_record_is_stale(tmp_path, both):
    records = make_records(30)
    store = write(tmp_path / "s", records, durable=20)
    older = encode(
        replace(
            records[29], queue_id=0, queue_offset=10, physical_offset=store.end, store_timestamp_ms=NOW_MS
        )
    )
    store.overwrite(store.end, older.raw)
    state = both(store)
    assert state.wrote == store.end
    assert "older" in state.report.reason


@pytest.mark.parametrize("magic", [ROCKETMQ_MAGIC])
def test_the_clock_may_go_back_where_rocketmq_wrote(tmp_path, both, magic):
    records = make_records(30, magic=magic, step_ms=-10)
    store = write(tmp_path / "s", records)
    assert both(store).wrote == store.end


def test_a_record_of_another_place_is_none(tmp_path, both):
    store = write(tmp_path / "s", make_records(30), durable=20)
    store.overwrite(store.end, store.records[3].raw)
    state = both(store)
    assert (state.wrote, state.report.reason) == (store.end, "bad position")


def test_a_blank_in_the_last_file_is_not_part_of_the_log(tmp_path, both):
    store = write(tmp_path / "s", make_records(10), durable=-1)
    store.overwrite(store.end, encode_blank(FILE_BYTES - store.end))
    state = both(store)
    assert state.wrote == store.end
    assert not aside(store.path) and state.report.clean
    assert_zero_behind(store, store.end)


def test_a_blank_before_an_empty_file_is(tmp_path, both):
    store = write(tmp_path / "s", make_records(10), durable=-1)
    store.overwrite(store.end, encode_blank(FILE_BYTES - store.end))
    (store.path / "commitlog" / f"{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    state = both(store)
    assert state.wrote == FILE_BYTES
    assert state.last_record == store.records[-1].physical_offset


def test_a_blank_of_the_wrong_length_is_damage(tmp_path, both):
    store = write(tmp_path / "s", make_records(10), durable=-1)
    store.overwrite(store.end, encode_blank(FILE_BYTES - store.end - 8))
    (store.path / "commitlog" / f"{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    state = both(store)
    assert (state.wrote, state.report.reason) == (store.end, "bad length")
    assert_zero_behind(store, store.end)


def test_files_made_ahead_of_need_stay_and_others_do_not(tmp_path, both):
    store = write(tmp_path / "s", make_records(10), durable=-1)
    folder = store.path / "commitlog"
    for base in (FILE_BYTES, 2 * FILE_BYTES, 4 * FILE_BYTES):
        (folder / f"{base:020d}").write_bytes(bytes(FILE_BYTES))
    (folder / f"{3 * FILE_BYTES:020d}").write_bytes(b"\1".ljust(FILE_BYTES, b"\0"))
    both(store)
    assert sorted(log_bytes(store.path)) == [f"{base:020d}" for base in (0, FILE_BYTES, 2 * FILE_BYTES)]
    assert list(aside(store.path).values()) == [b"\1".ljust(FILE_BYTES, b"\0")]


def test_a_file_that_was_cut_short_is_made_whole(tmp_path):
    store = write(tmp_path / "s", make_records(60), durable=20)
    last = store.file_of(store.end)
    last.write_bytes(last.read_bytes()[: store.records[-1].physical_offset % FILE_BYTES + 50])
    state = store.recover()
    assert state.wrote == store.records[-1].physical_offset
    assert last.stat().st_size == FILE_BYTES


@pytest.mark.parametrize("damage", ["zeros", "rot"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_tail_is_reported_after_a_crash_too(tmp_path, both, damage, count):
    """The record that the watermark names is gone with it: nobody else may be given its queue offset."""
    store = write(tmp_path / "s", make_records(30), durable=-1)
    first = store.records[-count]
    if damage == "zeros":
        store.overwrite(first.physical_offset, bytes(store.end - first.physical_offset))
    else:
        for record in store.records[-count:]:
            store.flip(record)
    state = both(store)
    assert state.wrote == first.physical_offset
    assert state.report.lost == (first.physical_offset, store.end)
    assert {(q.queue_id, q.dispatched) for q in state.queues} == {(0, 10), (1, 10), (2, 10)}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["commitlog", "consumequeue", "index"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("left", [0, 1, 55, 1999])
def test_a_store_with_a_file_that_was_cut_short_opens(tmp_path, kind, clean, read_only, left):
    store = write(tmp_path / "s", make_records(10, body=20), durable=-1, clean=clean)
    path = sorted(p for p in (store.path / kind).rglob("*") if p.is_file() and p.name != "CYSTORE")[0]
    path.write_bytes(path.read_bytes()[:left])
    there = [r for r in store.records if r.end <= left or kind != "commitlog"]
    with cystore.open(store.path, read_only=read_only, **stores.config(store.log)) as opened:
        assert [m.physical_offset for m in opened.scan()] == [r.physical_offset for r in there]
        for record in there:
            assert [m.physical_offset for m in opened.query("T", record.keys[0])] == [record.physical_offset]
            found = opened.get("T", record.queue_id, record.queue_offset, 1).messages
            assert [m.physical_offset for m in found] == [record.physical_offset]


def test_the_size_of_the_files_wins_over_the_configuration(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=-1)
    state = both(store, mapped_file_size_commit_log_bytes=1 << 20, mapped_file_size_consume_queue_bytes=4000)
    assert state.wrote == store.end
    assert (state.commit_log_file_bytes, state.consume_queue_file_bytes) == (FILE_BYTES, 200)
    assert len(state.report.warnings) == 2


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("strange", b"", "not a valid name"),
        (f"{FILE_BYTES:020d}", bytes(FILE_BYTES + 1), "bytes, the others"),
        (f"{FILE_BYTES + 1:020d}", bytes(FILE_BYTES), "not a multiple"),
    ],
)
def test_what_is_no_log_file_is_refused_by_name(tmp_path, name, content, what):
    store = write(tmp_path / "s", make_records(3))
    (store.path / "commitlog" / name).write_bytes(content)
    before = fingerprint(store.path)
    with pytest.raises(StoreFormatError, match=what) as caught:
        store.recover()
    assert name in str(caught.value)
    assert fingerprint(store.path) == before


def test_a_bad_sector_is_an_error_with_its_place(tmp_path, monkeypatch):
    """The one call that reads the log is made to fail as a disk does."""
    store = write(tmp_path / "s", make_records(60), durable=-1)
    real, bad = os.preadv, 512

    def preadv(fd, buffers, offset):
        if offset <= bad < offset + len(buffers[0]) and len(buffers[0]) > 1:
            if offset == bad:
                raise OSError(errno.EIO, "Input/output error")
            return real(fd, [buffers[0][: bad - offset]], offset)
        return real(fd, buffers, offset)

    monkeypatch.setattr("os.preadv", preadv)
    before = fingerprint(store.path)
    with pytest.raises(StoreIOError) as caught:
        store.recover()
    assert (caught.value.offset, caught.value.path.parent.name) == (bad, "commitlog")
    assert fingerprint(store.path) == before


# ----------------------------------------------------------------------- where the checkpoint gives no watermark


def test_rocketmqs_crash_keeps_up_to_the_physic_timestamp(tmp_path, both):
    """No watermark: what was stored by the physic timestamp counts as durable."""
    records = make_records(60, magic=ROCKETMQ_MAGIC)
    store = write(tmp_path / "s", records, physic_ms=records[40].store_timestamp_ms)
    store.flip(store.records[20])
    torn = store.records[50]
    store.flip(torn)
    state = both(store)
    assert state.wrote == torn.physical_offset
    assert state.watermark == store.records[40].end
    assert state.damaged_ranges.ranges() == [(store.records[20].physical_offset, store.records[20].end)]
    assert state.report.watermark_source == "timestamps"


def test_leftovers_behind_rocketmqs_cut_do_not_come_back(tmp_path, both):
    """RocketMQ cut the log, wrote on over the old bytes and crashed: the old records behind are older than the new
    ones."""
    old = write(tmp_path / "old", make_records(40, magic=ROCKETMQ_MAGIC))
    fresh = make_records(33, magic=ROCKETMQ_MAGIC)
    newer = [
        replace(record, store_timestamp_ms=NOW_MS + 10_000_000 + n, body=b"new" * 30)
        for n, record in enumerate(fresh[30:])
    ]
    store = write(tmp_path / "s", [*fresh[:30], *newer], physic_ms=NOW_MS + 20_000_000)
    left = old.log.files[store.end - store.end % FILE_BYTES]
    store.overwrite(store.end, left[store.end % FILE_BYTES :])
    state = both(store)
    assert state.wrote == store.end
    assert not state.damaged_ranges
    assert_zero_behind(store, store.end)


def test_a_watermark_of_another_log_is_not_believed(tmp_path, both):
    store = write(tmp_path / "s", make_records(60), durable=50)
    other = write(tmp_path / "other", make_records(60, body=61), durable=50)
    (store.path / "checkpoint").write_bytes((other.path / "checkpoint").read_bytes())
    state = both(store)
    assert state.report.watermark_source == "timestamps"
    assert state.wrote == store.end


def test_a_watermark_with_another_checksum_is_not_believed(tmp_path, both):
    """A log of the same shape and other content: places and lengths agree, only the checksum field tells."""
    store = write(tmp_path / "s", make_records(60), durable=50)
    changed = [replace(record, flag=1) for record in make_records(60)]
    other = write(tmp_path / "other", changed, durable=50)
    assert [r.physical_offset for r in other.records] == [r.physical_offset for r in store.records]
    (store.path / "checkpoint").write_bytes((other.path / "checkpoint").read_bytes())
    assert both(store).report.watermark_source == "timestamps"


def test_rocketmq_wrote_on_after_us(tmp_path, both):
    """Its physic timestamp is ahead of the record that the watermark names: the watermark is old."""
    records = make_records(60, magic=ROCKETMQ_MAGIC)
    store = write(tmp_path / "s", records, durable=10)
    at, now = store.records[10], store.records[50].store_timestamp_ms
    checkpoint = Checkpoint(now, now, 0, at.end, at.physical_offset, at.checksum, 0)
    (store.path / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    store.flip(store.records[30])
    state = both(store)
    assert state.damaged_ranges.ranges() == [(store.records[30].physical_offset, store.records[30].end)]
    assert state.wrote == store.end


# --------------------------------------------------------------------------------------- where it begins


def test_recovery_begins_at_the_checkpoint_and_not_at_the_beginning(tmp_path):
    records = make_records(400, step_ms=100)
    store = write(tmp_path / "s", records, durable=-1)
    state = store.recover()
    assert state.report.start > store.end - 5 * FILE_BYTES
    assert state.report.records < 150


@pytest.mark.parametrize(
    ("check_bytes", "files"),
    [(0, 3), (3 * FILE_BYTES, 3), (5 * FILE_BYTES, 5), (6 * FILE_BYTES - 1, 5), (1 << 30, None)],
)
def test_after_a_clean_close_it_begins_three_files_before_the_end_or_earlier(tmp_path, check_bytes, files):
    store = write(tmp_path / "s", make_records(400), durable=-1, clean=True)
    last = store.end - store.end % FILE_BYTES
    start = 0 if files is None else last - (files - 1) * FILE_BYTES
    assert store.recover(abnormal=False, check_at_load_bytes=check_bytes).report.start == start


def test_an_unreadable_list_of_holes_makes_it_begin_at_the_beginning(tmp_path):
    store = write(tmp_path / "s", make_records(400, step_ms=100), durable=-1)
    store.flip(store.records[3])
    (store.path / "quarantine").mkdir()
    (store.path / "quarantine" / "holes.json").write_text("{")
    state = store.recover()
    assert state.report.start == 0
    assert state.damaged_ranges.ranges() == [(store.records[3].physical_offset, store.records[3].end)]
    assert any("holes" in warning for warning in state.report.warnings)


def test_an_older_list_of_holes_does_not_hide_a_newer_hole(tmp_path):
    store = write(tmp_path / "s", make_records(400, step_ms=100), durable=-1)
    bad = [store.records[3], store.records[9]]
    for record in bad:
        store.flip(record)
    for count in (1, 2):
        write_damaged_ranges(
            store.path, DamagedRanges(DamagedRange(r.physical_offset, r.end) for r in bad[:count])
        )
    assert store.recover(mode=Mode.PRIVATE).report.start > 0
    (store.path / "quarantine" / "holes.json").write_text("{")
    state = store.recover()
    assert state.report.start == 0
    assert state.damaged_ranges.ranges() == [(r.physical_offset, r.end) for r in bad]


# --------------------------------------------------------- a damaged header that RocketMQ's checksum leaves out


def with_queue_offset(store, number: int, queue_offset: int) -> None:
    store.overwrite(store.records[number].physical_offset + 20, queue_offset.to_bytes(8, "big"))


@pytest.mark.parametrize("queue_offset", [5, 8, 7 + 2**10, 7 + 2**40, 2**63 - 1, 2**64 - 1])
def test_a_damaged_queue_offset_costs_that_record_only(tmp_path, both, queue_offset):
    records = make_records(60, magic=ROCKETMQ_MAGIC)
    store = write(tmp_path / "s", records, physic_ms=records[-1].store_timestamp_ms)
    with_queue_offset(store, 21, queue_offset)
    state = both(store)
    bad = store.records[21]
    assert state.damaged_ranges.ranges() == [(bad.physical_offset, bad.end)]
    assert state.wrote == store.end


def test_a_queue_that_really_went_on_at_another_offset_is_believed(tmp_path, both):
    """RocketMQ loses consume queue entries and then counts on from a wrong place; its records are kept."""
    records = make_records(60, magic=ROCKETMQ_MAGIC)
    moved = [
        replace(r, queue_offset=r.queue_offset + 5) if n > 30 and r.queue_id == 1 else r
        for n, r in enumerate(records)
    ]
    store = write(tmp_path / "s", moved, physic_ms=records[-1].store_timestamp_ms)
    state = both(store)
    assert not state.damaged_ranges
    assert state.wrote == store.end
