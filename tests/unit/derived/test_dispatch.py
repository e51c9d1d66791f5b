"""Goal: dispatch makes RocketMQ's consume queues and an index that finds every key, whoever does it and however often
it is broken off. Method: logs made by hypothesis are dispatched and compared with what the oracle derives from the
same records, byte for byte; processes are killed at every step of the kernel's work and another one continues."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore.config import StoreConfig
from cystore.engine.files.segments import Mode
from cystore.errors import StoreFullError
from cystore.layout import FLAGS
from cystore.results import GetStatus
from tests.oracle import index as oracle_index
from tests.oracle import queue as oracle_queue
from tests.oracle.log import lay_out
from tests.oracle.record import SCHEDULE_TOPIC, Record
from tests.support import parts
from tests.support.property.strategies import WrittenLog, logs

QUEUE_BYTES = 200
SLOTS, CAPACITY = 7, 20
CONFIG = StoreConfig(
    mapped_file_size_commit_log_bytes=4096,
    mapped_file_size_consume_queue_bytes=QUEUE_BYTES,
    max_hash_slot_num=SLOTS,
    max_index_num=CAPACITY,
)


def opened(root: Path, written: WrittenLog, **more) -> parts.Parts:
    parts.write_log(root, written.log)
    return parts.attach(root, CONFIG, minimum=written.log.minimum, wrote=written.end, **more)


def queue_files(root: Path) -> dict[tuple[str, int], dict[int, bytes]]:
    return oracle_queue.read_queue_directories(root / "consumequeue")


def index_files(root: Path) -> list[bytes]:
    folder = root / "index"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def expected_queues(
    records: list[Record], file_bytes: int = QUEUE_BYTES
) -> dict[tuple[str, int], dict[int, bytes]]:
    built = oracle_queue.entries_of(records)
    return {key: oracle_queue.queue_files(entries, file_bytes) for key, entries in built.items()}


def expected_index(records: list[Record]) -> list[bytes]:
    built: list[oracle_index.IndexFile] = []
    oracle_index.build(built, records, SLOTS, CAPACITY, repeat_last=False)
    return [bytes(file.data) for file in built]


def make_records(
    count: int, *, topic: str = "T", queue_id: int = 0, first: int = 0, **fields
) -> list[Record]:
    """Records of one queue, a second apart, each with a key of its own and one that all have."""
    return [
        Record(
            topic=topic,
            body=f"body {n}".encode(),
            queue_id=queue_id,
            queue_offset=first + n,
            store_timestamp_ms=1_700_000_000_000 + 1000 * n,
            raw_properties=f"KEYS\x01key{n} all\x02TAGS\x01tag{n % 3}".encode(),
            **fields,
        )
        for n in range(count)
    ]


def laid_out(records: list[Record], begin_file: int = 0) -> WrittenLog:
    return WrittenLog(*lay_out(records, 4096, begin_file * 4096))


# ------------------------------------------------------------------------------------------- what is made

# Characters of one to four bytes at each place of a word of four bytes, blanks around keys, bytes that are no text.
KEYS = [
    *("x" * before + character + "yz" for before in range(5) for character in "é€😀"),
    *(" " * before + "k" * length + "  other" for before in range(3) for length in range(1, 10)),
    *("k" * length for length in range(1, 10)),
    "a b c d e f g h",
]
NO_TEXT = [b"abc\xff", b"\x80abcd efg", b"ab\xe2\x82", b"\xed\xa0\x80 tail"]


def test_every_key_has_the_hash_of_the_oracle(tmp_path):
    texts = [*(text.encode() for text in KEYS), *NO_TEXT]
    records = [
        replace(record, raw_properties=b"KEYS\x01" + text + b"\x02TAGS\x01a")
        for record, text in zip(make_records(len(texts)), texts, strict=True)
    ]
    written = laid_out(records)
    opened(tmp_path, written).dispatcher.run_to_end()
    assert index_files(tmp_path) == expected_index(written.records)


@given(logs(max_records=40), st.lists(st.integers(1, 9000), max_size=12))
def test_queues_and_index_follow_from_the_log(written, budgets):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = opened(root, written)
        for budget in budgets:
            before = store.control.dispatched
            assert store.dispatcher.run_once(budget).done == store.control.dispatched - before
        store.dispatcher.run_to_end()
        assert store.control.dispatched == written.end
        assert queue_files(root) == expected_queues(written.records)
        assert index_files(root) == expected_index(written.records)
        if written.records:
            assert store.control.dispatched_timestamp_ms == written.records[-1].store_timestamp_ms


@given(logs(begin_file=3))
def test_a_log_whose_start_is_gone_gives_queues_that_begin_with_pre_blank_entries(written):
    moved = [replace(r, queue_offset=r.queue_offset + 13 if r.in_queue else 0) for r in written.records]
    written = laid_out(moved, 3)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = opened(root, written)
        store.dispatcher.run_to_end()
        assert queue_files(root) == expected_queues(written.records)
        for (topic, queue_id), entries in oracle_queue.entries_of(written.records).items():
            slot = store.control.find_queue(topic, queue_id)
            assert store.control.queue_minimum(slot) == min(entries)
            assert store.control.queue_dispatched(slot) == max(entries) + 1


@given(logs(), st.data())
def test_records_in_a_hole_leave_hole_entries(written, data):
    """A hole swallows whole records here; what stands in it is not looked at."""
    bounds = [r.physical_offset for r in written.records] + [written.end]
    first = data.draw(st.integers(0, len(bounds) - 1))
    begin, end = bounds[first], data.draw(st.sampled_from(bounds[first:]))
    if begin == end:
        return
    kept = [r for r in written.records if not begin <= r.physical_offset < end]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = opened(root, written, holes=[(begin, end)])
        for base in range(written.log.minimum, end, 4096):
            path = root / "commitlog" / f"{base:020d}"
            damaged = bytearray(path.read_bytes())
            low, high = max(begin - base, 0), min(end - base, 4096)
            if low < high:
                damaged[low:high] = os.urandom(high - low)
                path.write_bytes(damaged)
        store.dispatcher.run_to_end()
        assert queue_files(root) == expected_queues(kept)
        assert index_files(root) == expected_index(kept)


def test_private_mode_makes_the_same_and_writes_nothing(tmp_path):
    written = laid_out(make_records(60))
    shared, private = tmp_path / "shared", tmp_path / "private"
    opened(shared, written).dispatcher.run_to_end()
    store = opened(private, written, mode=Mode.PRIVATE)
    store.dispatcher.run_to_end()
    assert sorted(path.name for path in private.iterdir()) == ["commitlog"]
    queue = store.queues.find("T", 0)
    assert queue is not None
    bases = [base for key, files in queue_files(shared).items() for base in files]
    assert {base: bytes(queue.files.get(base)) for base in bases} == queue_files(shared)["T", 0]
    assert [bytes(file.file) for file in store.index.files()] == index_files(shared)


def test_private_mode_goes_on_in_files_that_are_there(tmp_path):
    written = laid_out(make_records(30))
    half = written.records[15].physical_offset
    store = opened(tmp_path, written)
    store.dispatcher.run_once(half)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    private = opened(tmp_path, written, dispatched=half, mode=Mode.PRIVATE)
    private.control.add_queue("T", 0, next=15, dispatched=15)
    private.dispatcher.run_to_end()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [m.queue_offset for m in private.reader.get("T", 0, 5, 32).messages] == list(range(5, 10))
    assert [m.queue_offset for m in private.reader.query("T", "all", 100)] == list(range(29, -1, -1))


def test_without_the_index_only_queues_are_made(tmp_path):
    written = laid_out(make_records(5))
    parts.write_log(tmp_path, written.log)
    config = replace(CONFIG, message_index_enable=False)
    store = parts.attach(tmp_path, config, minimum=0, wrote=written.end)
    store.dispatcher.run_to_end()
    assert queue_files(tmp_path) == expected_queues(written.records)
    assert index_files(tmp_path) == [] == store.reader.query("T", "all")


def test_more_queues_than_are_kept_open(tmp_path, monkeypatch):
    monkeypatch.setattr("cystore.derived.dispatch.dispatcher.MAX_MAPPED_QUEUES", 8)
    monkeypatch.setattr("cystore.derived.files.consume_queue.MAX_OPEN", 8)
    mixed = [
        record
        for n in range(4)
        for queue_id in range(300)
        for record in [replace(make_records(1, queue_id=queue_id)[0], queue_offset=n)]
    ]
    written = laid_out(mixed)
    store = opened(tmp_path, written)
    store.dispatcher.run_to_end()
    assert queue_files(tmp_path) == expected_queues(written.records)
    for queue_id in range(300):
        assert len(store.reader.get("T", queue_id, 0).messages) == 4


def test_a_turn_ends_in_the_kernel_when_its_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr("cystore.derived.dispatch.dispatcher.TURN_S", 0.0)
    config = replace(
        CONFIG,
        mapped_file_size_commit_log_bytes=65536,
        mapped_file_size_consume_queue_bytes=20_000,
        message_index_enable=False,
    )
    written = WrittenLog(*lay_out(make_records(200), 65536, 0))
    parts.write_log(tmp_path, written.log)
    store = parts.attach(tmp_path, config, minimum=0, wrote=written.end)
    turns = []
    while store.dispatcher.run_once(one_turn=True).more:
        turns.append(store.control.queue_dispatched(0))
    assert turns == list(range(32, 200, 32))  # 32 records are read at once
    assert queue_files(tmp_path) == expected_queues(written.records, 20_000)


def test_due_times_follow_the_configured_levels(tmp_path):
    bare = [
        replace(r, topic=SCHEDULE_TOPIC, raw_properties=f"DELAY\x01{level}\x02TAGS\x01a".encode())
        for r, level in zip(make_records(6), ["1", "2", "+3", "99", "0", "x"], strict=True)
    ]
    written = laid_out(bare)
    parts.write_log(tmp_path, written.log)
    config = replace(CONFIG, message_delay_level="2s 1m 3h")
    store = parts.attach(tmp_path, config, minimum=0, wrote=written.end)
    store.dispatcher.run_to_end()
    queue = store.queues.find(SCHEDULE_TOPIC, 0)
    assert queue is not None
    codes = [entry.tags_code for _, entry in queue.entries(0, 6)]
    due = [
        ms + r.store_timestamp_ms
        for ms, r in zip([2000, 60_000, 10_800_000, 10_800_000], written.records, strict=False)
    ]
    assert codes == [*due, ord("a"), ord("a")]


def test_extended_units_stand_beside_the_queue(tmp_path):
    written = laid_out(make_records(40))
    parts.write_log(tmp_path, written.log)
    config = replace(CONFIG, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext_bytes=128)
    first = parts.attach(tmp_path, config, minimum=0, wrote=written.end)
    second = parts.attach(tmp_path, config, minimum=0, wrote=written.end, control=first.control)
    for turn in range(40):  # in turns: each has to see where the other one's last unit ends
        (first, second)[turn % 2].dispatcher.run_once(200)
    second.dispatcher.run_to_end()
    files = oracle_queue.read_queue_directories(tmp_path / "consumequeue_ext")["T", 0]
    entries = oracle_queue.read_entries(queue_files(tmp_path)["T", 0])
    units = [oracle_queue.read_ext(files, entries[n].tags_code) for n in range(40)]
    plain_entries = oracle_queue.entries_of(written.records)["T", 0]
    assert [u.tags_code for u in units] == [plain_entries[n].tags_code for n in range(40)]
    assert [u.store_timestamp_ms for u in units] == [r.store_timestamp_ms for r in written.records]
    # Six units of 20 bytes, and 4 more for the end mark, fit into 128.
    assert sorted(files) == [128 * n for n in range(7)]
    assert files[0][120:122] == b"\xff\xff"
    queue = first.queues.find("T", 0)
    assert queue is not None and queue.ext is not None
    assert queue.ext.get(entries[7].tags_code) == (20, units[7].tags_code, units[7].store_timestamp_ms, b"")
    assert queue.ext.get(1234) is None
    first.queues.flush()


# ------------------------------------------------------------------------------------- what is in the way


def test_a_damaged_record_is_stepped_over_and_listed(tmp_path):
    written = laid_out(make_records(20))
    bad = written.records[7]
    parts.write_log(tmp_path, written.log)
    store = parts.attach(tmp_path, CONFIG, minimum=0, wrote=written.end)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[bad.physical_offset + 4] ^= 1
    path.write_bytes(data)
    store.dispatcher.run_to_end()
    assert store.control.dispatched == written.end
    assert store.control.flags & FLAGS["FLAG_CORRUPT"][0]
    assert [m.queue_offset for m in store.reader.get("T", 0, 0).messages] == [*range(7), 8, 9]
    assert store.control.owner("dispatch") == 0
    (hole,) = store.commit_log.damaged_ranges
    assert (hole.begin, hole.end, hole.reason) == (
        bad.physical_offset,
        bad.physical_offset + bad.size,
        "bad magic",
    )
    copied = (tmp_path / "quarantine" / hole.copy).read_bytes()
    assert copied == data[hole.begin : hole.end]


@pytest.mark.parametrize("queue_offset", [2**62, 300])
def test_a_queue_offset_far_ahead_is_damage_and_not_a_long_gap(tmp_path, queue_offset):
    records = make_records(12)
    records[9] = replace(records[9], queue_offset=queue_offset)
    written = laid_out(records)
    store = opened(tmp_path, written)
    store.dispatcher.run_to_end()
    (hole,) = store.commit_log.damaged_ranges
    assert hole.begin == written.records[9].physical_offset and "has no room" in hole.reason
    assert queue_files(tmp_path) == expected_queues([*written.records[:9], *written.records[10:]])


def test_a_full_disk_stops_dispatch_and_room_lets_it_go_on(tmp_path, monkeypatch):
    written = laid_out(make_records(60))
    store = opened(tmp_path, written)

    def refuse(*arguments: object) -> None:
        raise StoreFullError("no space left on the disk")

    with monkeypatch.context() as patched:
        patched.setattr("cystore.system.files.allocate", refuse)
        with pytest.raises(StoreFullError):
            store.dispatcher.run_to_end()
        assert store.control.dispatched == 0
        assert store.reader.get("T", 0, 0).messages == []
    store.dispatcher.run_to_end()
    assert queue_files(tmp_path) == expected_queues(written.records)
    assert index_files(tmp_path) == expected_index(written.records)


def test_an_index_file_that_cannot_be_made_leaves_no_key_entered_twice(tmp_path, monkeypatch):
    written = laid_out(make_records(60))
    store = opened(tmp_path, written)
    add = store.index.add
    calls = 0

    def sometimes(backlog_bytes: int) -> object:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise StoreFullError("no space left on the disk")
        return add(backlog_bytes)

    monkeypatch.setattr(store.index, "add", sometimes)
    for _ in range(100):
        try:
            store.dispatcher.run_to_end()
        except StoreFullError:
            continue
        break
    assert store.control.dispatched == written.end
    assert index_files(tmp_path) == expected_index(written.records)


def test_records_removed_before_they_were_dispatched(tmp_path, caplog):
    written = laid_out(make_records(200))
    store = opened(tmp_path, written)
    store.dispatcher.run_once(1000)
    done = store.control.queue_dispatched(0)
    store.control.min_physical_offset = 8192
    with caplog.at_level(logging.WARNING, "cystore"):
        store.dispatcher.run_to_end()
    left = [r for r in written.records if r.physical_offset >= 8192]
    assert "were removed before they were dispatched" in caplog.text
    queue = store.queues.find("T", 0)
    assert queue is not None
    assert [offset for offset, entry in queue.entries(0, 200) if entry is None] == list(
        range(done, left[0].queue_offset)
    )
    result = store.reader.get("T", 0, done, 32)
    while not result.messages:
        assert result.status is GetStatus.MESSAGE_WAS_REMOVING
        result = store.reader.get("T", 0, result.next_offset, 32)
    assert result.messages[0].queue_offset == left[0].queue_offset


# --------------------------------------------------------------------------------------- whoever does it


def test_a_thread_that_is_dispatching_does_not_wait_for_itself(tmp_path):
    written = laid_out(make_records(10))
    store = opened(tmp_path, written)
    inside = []
    segment_for = store.commit_log.segment_for

    def as_a_signal_handler_would(offset: int) -> object:
        inside.append(store.dispatcher.run_once(timeout_ms=None))
        store.dispatcher.run_to_end()
        return segment_for(offset)

    store.commit_log.segment_for = as_a_signal_handler_would
    store.dispatcher.run_to_end()
    assert inside[0].done == 0 and inside[0].more
    assert store.control.dispatched == written.end


def test_a_busy_dispatcher_is_waited_for_a_bounded_time(tmp_path):
    written = laid_out(make_records(10))
    store = opened(tmp_path, written)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        turn = store.control.held("dispatch")
        turn.__enter__()
        held.set()
        release.wait()
        turn.__exit__(None, None, None)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert store.dispatcher.run_once().more
        assert store.dispatcher.run_once(timeout_ms=20).more
        assert store.control.dispatched == 0
    finally:
        release.set()
        thread.join()
    store.dispatcher.run_to_end()
    assert store.control.dispatched == written.end


@pytest.mark.slow
@given(logs(max_records=40), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3000)), max_size=20))
def test_several_dispatchers_take_turns(written, turns):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        first = opened(root, written)
        stores = [first, *(opened(root, written, control=first.control) for _ in range(2))]
        for which, budget in turns:
            stores[which].dispatcher.run_once(budget)
        stores[0].dispatcher.run_to_end()
        assert queue_files(root) == expected_queues(written.records)
        assert index_files(root) == expected_index(written.records)


def test_dispatching_all_again_gives_the_same_files(tmp_path):
    written = laid_out(make_records(60))
    store = opened(tmp_path, written)
    store.dispatcher.run_to_end()
    before = queue_files(tmp_path), index_files(tmp_path)
    store.control.dispatched = written.records[20].physical_offset
    store.dispatcher.run_to_end()
    after = queue_files(tmp_path), index_files(tmp_path)
    assert after[0] == before[0]
    keys = [f"key{n}" for n in range(60)]
    for key in [*keys, "all"]:
        found = [m.queue_offset for m in store.reader.query("T", key, 100)]
        assert found == ([int(key[3:])] if key != "all" else list(range(59, -1, -1)))
