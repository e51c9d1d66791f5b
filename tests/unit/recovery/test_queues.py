"""Goal: consume queues are brought in line with the log, from as late a place as possible. Method: a store whose
entries are missing, wrong, stale or from the future in every way a crash or rot leaves them is recovered and opened;
its queues must then be byte for byte those that follow from the log."""

from __future__ import annotations

import contextlib
import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest

import cystore
from cystore.clock import monotonic_s
from cystore.derived.files.offsets import QueueOffsets, write_queue_offsets
from cystore.engine.files.segments import Mode
from cystore.system.threads import os_threads
from cystore.verify.verifier import verify
from tests.oracle import queue
from tests.oracle import store as oracle
from tests.oracle.log import lay_out
from tests.oracle.record import ROCKETMQ_MAGIC, SCHEDULE_TOPIC
from tests.support.interrupts import mapped
from tests.support.property import stores
from tests.support.recovery_stores import FILE_BYTES, make_records, write

ENTRY = queue.ENTRY_BYTES


def open_and_close(store, **settings):
    """Recovers, dispatches and closes; gives the report."""
    with cystore.open(store.path, **{**stores.config(store.log), **settings}) as opened:
        return opened.recovery


def assert_queues_follow(store, records=None) -> None:
    """On disk: every queue as its records make it, nothing behind."""
    found = queue.read_queue_directories(store.path / "consumequeue")
    expected = {
        key: queue.queue_files(entries, stores.SMALL.queue_file_bytes)
        for key, entries in queue.entries_of(store.records if records is None else records).items()
    }
    assert {key: {b: d for b, d in files.items() if any(d)} for key, files in found.items()} == expected


def damage_entry(store, queue_id: int, number: int, data: bytes, at: int = 0) -> None:
    base = number * ENTRY // stores.SMALL.queue_file_bytes * stores.SMALL.queue_file_bytes
    path = store.queue_file(queue_id, base)
    content = bytearray(path.read_bytes())
    begin = number * ENTRY - base + at
    content[begin : begin + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("magic", [ROCKETMQ_MAGIC, None])
def test_sound_queues_are_left_alone(tmp_path, clean, magic):
    records = make_records(60) if magic is None else make_records(60, magic=magic)
    store = write(tmp_path / "s", records, durable=-1, clean=clean)
    state = store.recover(abnormal=not clean)
    assert {(q.queue_id, q.dispatched, q.minimum) for q in state.queues} == {
        (0, 20, 0),
        (1, 20, 0),
        (2, 20, 0),
    }
    assert state.report.queues_cut == 0
    assert_queues_follow(store)
    if clean:
        assert state.dispatched == store.end


@pytest.mark.parametrize("derived", [0, 1, 10, 59])
def test_records_that_were_not_dispatched_are(tmp_path, derived):
    store = write(tmp_path / "s", make_records(60), durable=-1, derived=derived)
    state = store.recover(mode=Mode.PRIVATE)
    assert state.dispatched <= store.records[derived].physical_offset
    open_and_close(store)
    assert_queues_follow(store)


def test_dispatch_goes_on_where_the_entries_end(tmp_path):
    store = write(tmp_path / "s", make_records(60), durable=-1, clean=True, derived=50)
    state = store.recover(abnormal=False, message_index_enable=False)
    assert state.dispatched == store.records[50].physical_offset


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("what", "data", "at"),
    [
        ("never written", bytes(ENTRY), 0),
        ("another place", (77).to_bytes(8, "big"), 0),
        ("another size", (5).to_bytes(4, "big"), 8),
        ("other tags", (5).to_bytes(8, "big"), 12),
        ("past the end", (1 << 62).to_bytes(8, "big"), 0),
        ("below zero", b"\xff" * ENTRY, 0),
        ("a hole", queue.encode_entry(queue.HOLE), 0),
    ],
)
@pytest.mark.parametrize("number", [0, 7, 10, 19])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_entry_is_written_again(tmp_path, what, data, at, number, clean):
    store = write(tmp_path / "s", make_records(60), durable=-1, clean=clean)
    damage_entry(store, 1, number, data, at)
    open_and_close(store)
    assert_queues_follow(store)


def delayed_store(path, clean):
    records = [
        replace(
            record, topic=SCHEDULE_TOPIC, raw_properties=b"DELAY\x01%d\x02TAGS\x01a" % (record.queue_id + 1)
        )
        for record in make_records(60)
    ]
    return write(path, records, durable=-1, clean=clean)


@pytest.mark.parametrize("bit", [0, 1, 9, 20, 40, 61, 62])
@pytest.mark.parametrize("clean", [True, False])
def test_due_times_are_compared(tmp_path, bit, clean):
    """Whatever the levels were, a due time is whole seconds behind the store timestamp."""
    store = delayed_store(tmp_path / "s", clean)
    file = store.path / "consumequeue" / SCHEDULE_TOPIC / "1" / "0".zfill(20)
    content = bytearray(file.read_bytes())
    content[7 * ENTRY + 12 + 7 - bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    assert [damage.kind for damage in verify(store.path, store.config, abnormal=not clean)].count(
        "consume_queue"
    ) == 1
    open_and_close(store)
    assert_queues_follow(store)


@pytest.mark.parametrize("clean", [True, False])
def test_other_levels_later_are_no_damage(tmp_path, clean):
    store = delayed_store(tmp_path / "s", clean)
    other = {"message_delay_level": "7s 2d"}
    config = replace(store.config, **other)
    assert "consume_queue" not in {d.kind for d in verify(store.path, config, abnormal=not clean)}
    report = open_and_close(store, **other)
    assert report.queues_cut == 0
    assert_queues_follow(store)


def test_entries_of_records_that_are_gone_are_cut(tmp_path):
    """A power cut: the queues reached the disk before the log did."""
    records = make_records(90)
    store = write(tmp_path / "s", records, durable=50)
    cut = store.records[70]
    store.overwrite(cut.physical_offset, bytes(FILE_BYTES - cut.physical_offset % FILE_BYTES))
    for base in [b for b in store.log.files if b > cut.physical_offset]:
        store.file_of(base).write_bytes(bytes(FILE_BYTES))
    report = open_and_close(store)
    assert report.end == cut.physical_offset
    assert_queues_follow(store, store.records[:70])


@pytest.mark.parametrize("what", ["all", "one queue", "one file", "first file"])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_files_are_made_again(tmp_path, what, clean):
    store = write(tmp_path / "s", make_records(120), durable=-1, clean=clean)
    paths = {
        "all": sorted((store.path / "consumequeue").rglob("0" * 12 + "*")),
        "one queue": sorted((store.path / "consumequeue" / "T" / "1").iterdir()),
        "one file": [store.queue_file(1, 2 * stores.SMALL.queue_file_bytes)],
        "first file": [store.queue_file(1, 0)],
    }[what]
    for path in paths:
        path.unlink()
    open_and_close(store)
    assert_queues_follow(store)


@pytest.mark.parametrize("length", [0, 19, 100, 199, 201, 400])
def test_a_file_of_another_length_is_made_again(tmp_path, length):
    store = write(tmp_path / "s", make_records(120), durable=-1)
    path = store.queue_file(1, stores.SMALL.queue_file_bytes)
    path.write_bytes((path.read_bytes() * 3)[:length])
    open_and_close(store)
    assert_queues_follow(store)


def test_a_long_idle_queue_that_lost_entries_is_found_out(tmp_path):
    """Its records are far below the place where checking begins; only what was saved at the last close tells of
    them."""
    early = [replace(r, topic="Idle", queue_id=0, queue_offset=n) for n, r in enumerate(make_records(15))]
    late = [replace(r, store_timestamp_ms=r.store_timestamp_ms + 1_000_000) for r in make_records(300)]
    store = write(tmp_path / "s", [*early, *late], durable=-1, clean=True)
    write_queue_offsets(store.path, QueueOffsets({("Idle", 0): 15}, {("Idle", 0): 0}, store.end))
    state = store.recover(abnormal=False, mode=Mode.PRIVATE, check_at_load_bytes=0)
    assert state.report.start > early[-1].physical_offset and state.report.clean
    idle = store.path / "consumequeue" / "Idle" / "0"
    (idle / f"{stores.SMALL.queue_file_bytes:020d}").write_bytes(bytes(stores.SMALL.queue_file_bytes))
    report = open_and_close(store, check_at_load_bytes=0)
    assert report.start == 0
    assert_queues_follow(store)
    for path in idle.iterdir():
        path.unlink()
    idle.rmdir()
    open_and_close(store, check_at_load_bytes=0)
    assert_queues_follow(store)


def test_dispatch_that_stopped_far_below_goes_on_there(tmp_path):
    """Nothing was dispatched, and no queue of the records walked says so: each begins there, with offset 0."""
    idle = [replace(r, topic="Idle", queue_id=0, queue_offset=n) for n, r in enumerate(make_records(100))]
    _, placed, _ = lay_out(idle, FILE_BYTES)
    early = [r for r in placed if r.end <= 3 * FILE_BYTES]
    late = [replace(r, store_timestamp_ms=r.store_timestamp_ms + 1_000_000) for r in make_records(60)]
    store = write(tmp_path / "s", early + late, durable=-1, clean=True, derived=0)
    walked_first = store.end - store.end % FILE_BYTES - 2 * FILE_BYTES
    assert store.records[len(early)].physical_offset == walked_first
    report = open_and_close(store, message_index_enable=False)
    assert report.start == 0
    assert_queues_follow(store)


def test_an_idle_queue_whose_last_entry_rots_is_found_out(tmp_path):
    early = [replace(r, topic="Idle", queue_id=0, queue_offset=n) for n, r in enumerate(make_records(15))]
    late = [replace(r, store_timestamp_ms=r.store_timestamp_ms + 1_000_000) for r in make_records(300)]
    store = write(tmp_path / "s", [*early, *late], durable=-1, clean=True)
    path = store.path / "consumequeue" / "Idle" / "0" / f"{stores.SMALL.queue_file_bytes:020d}"
    data = bytearray(path.read_bytes())
    data[4 * ENTRY + 2] ^= 0x40
    path.write_bytes(data)
    open_and_close(store)
    assert_queues_follow(store)


def test_a_queue_whose_messages_are_all_gone_goes_on_counting(tmp_path):
    store = write(tmp_path / "s", make_records(30), durable=-1, clean=True)
    write_queue_offsets(store.path, QueueOffsets({("Gone", 3): 41}, {("Gone", 3): 41}, store.end))
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        assert opened.topics()["Gone"][3] == (41, 41)
        assert opened.put("Gone", b"more", queue_id=3).queue_offset == 41
        assert opened.get("Gone", 3, 41).messages[0].body == b"more"
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        assert opened.topics()["Gone"][3] == (41, 42)


def test_saved_offsets_of_a_log_that_lost_its_tail_count(tmp_path):
    """The table was written when all it counts was durable: the log lost messages, and their offsets are not handed
    out again."""
    store = write(tmp_path / "s", make_records(60), durable=-1)
    write_queue_offsets(store.path, QueueOffsets({("T", 0): 25}, {("T", 0): 0}, store.end + 5000))
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        assert opened.put("T", b"next", queue_id=0).queue_offset == 25


@pytest.mark.parametrize("content", ["{", '{"offsetTable":{"T":{"0":"x"}}}', "\0" * 40])
def test_damaged_saved_offsets_are_a_warning(tmp_path, content):
    store = write(tmp_path / "s", make_records(30), durable=-1)
    (store.path / "config").mkdir()
    (store.path / "config" / "queueOffset.json").write_text(content)
    state = store.recover()
    assert "queueOffset" in state.report.warnings[0]
    assert state.wrote == store.end


def test_damaged_saved_offsets_do_not_keep_a_closed_store_open(tmp_path):
    """The error that tells of them leads to the frames of everybody who opened something."""
    store = write(tmp_path / "s", make_records(30), durable=-1)
    (store.path / "config").mkdir()
    (store.path / "config" / "queueOffset.json").write_text("{")
    gc.collect()
    gc.disable()
    try:
        cystore.open(store.path, **stores.config(store.log)).close()
        until = monotonic_s() + 60
        while mapped(store.path) and monotonic_s() < until:  # a look of the thread "let-go" may still run
            os_threads.pause(0.001)
        held = Path("/proc/self/maps").read_text().splitlines()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                held.append(os.readlink(f"/proc/self/fd/{name}"))
    finally:
        gc.enable()
    assert [name for name in held if str(store.path) in name] == []


# -------------------------------------------------------------------------------------------- holes and minimums


@pytest.mark.parametrize("number", [0, 20, 57, 59])
@pytest.mark.parametrize("with_queues", [True, False])
def test_the_offset_of_a_damaged_record_becomes_a_hole_entry(tmp_path, number, with_queues):
    """Also when it was the last of its queue: its offset is not used again."""
    store = write(tmp_path / "s", make_records(63), durable=-1, derived=None if with_queues else 0)
    bad = store.records[number]
    store.flip(bad)
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        minimum, maximum = opened.topics()["T"][bad.queue_id]
        assert (minimum, maximum) == (1 if number == 0 else 0, 21)
    entries = oracle.read_directory(store.path).entries["T", bad.queue_id]
    assert entries[bad.queue_offset] == queue.HOLE
    assert [n for n, e in entries.items() if e.is_hole] == [bad.queue_offset]


def test_the_offset_of_a_queues_damaged_last_record_is_not_used_again(tmp_path):
    records = make_records(60)
    alone = replace(records[30], topic="Alone", queue_id=0, queue_offset=0)
    store = write(tmp_path / "s", [*records[:30], alone, *[replace(r) for r in records[30:]]], durable=-1)
    bad = store.records[30]
    store.flip(bad)
    for _ in range(2):
        with cystore.open(store.path, **stores.config(store.log)) as opened:
            assert opened.topics()["Alone"][0] == (1, 1)
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        assert opened.put("Alone", b"next").queue_offset == 1
    with cystore.open(store.path, **stores.config(store.log)) as opened:
        assert opened.topics()["Alone"][0] == (1, 2)
        assert [m.body for m in opened.get("Alone", 0, 1).messages] == [b"next"]


@pytest.mark.parametrize("read_only", [True, False])
def test_lost_offsets_at_the_end_are_stepped_over(tmp_path, read_only):
    """The last records of a closed store rotted: reading continues behind them, before and after they were put
    aside."""
    store = write(tmp_path / "s", make_records(30), clean=True)
    for record in store.records[-3:]:
        store.flip(record)
    with cystore.open(store.path, read_only=read_only, **stores.config(store.log)) as opened:
        for queue_id in range(3):
            result = opened.get("T", queue_id, 0)
            assert [m.queue_offset for m in result.messages] == list(range(9))
            assert result.max_offset == 10
            assert opened.get("T", queue_id, 9).next_offset == 10


def test_a_log_that_lost_its_start(tmp_path):
    """Expired files: entries that point below the minimum stay, the minimum is the first message that is there."""
    store = write(tmp_path / "s", make_records(120), durable=-1, clean=True)
    store.file_of(0).unlink()
    left = [r for r in store.records if r.physical_offset >= FILE_BYTES]
    state = store.recover(abnormal=False)
    assert state.min_physical_offset == FILE_BYTES
    assert {(q.queue_id, q.minimum) for q in state.queues} == {
        (i, min(r.queue_offset for r in left if r.queue_id == i)) for i in range(3)
    }
    for path in sorted((store.path / "consumequeue").rglob("0" * 12 + "*")):
        path.unlink()
    open_and_close(store)
    assert_queues_follow(store, left)


def test_a_strange_directory_is_a_warning(tmp_path):
    store = write(tmp_path / "s", make_records(30), durable=-1)
    for name in ("T/x", "T/01", "no topic/0"):
        (store.path / "consumequeue" / name).mkdir(parents=True)
    state = store.recover()
    assert len(state.report.warnings) == 3
    assert {q.topic for q in state.queues} == {"T"}
