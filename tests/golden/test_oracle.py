"""Goal: the oracle reads a store as RocketMQ 4.9.3 does. Method: every row that RocketMQ wrote down about
every golden store is computed again from the store's files alone."""

import hashlib
import zlib
from dataclasses import replace

import pytest

from tests.oracle import index, queue, store
from tests.oracle.checkpoint import Checkpoint, parse_offsets
from tests.oracle.checkpoint import encode as encode_checkpoint
from tests.oracle.log import Log, lay_out
from tests.oracle.record import Blank, encode
from tests.support.golden.dump import as_rocketmq
from tests.support.golden.stores import NAMES

pytestmark = pytest.mark.sampled(5)  # of 14 stores; the oracle seldom changes


@pytest.fixture
def directory(golden) -> store.Directory:
    return store.read_directory(golden.store)


@pytest.fixture
def view(directory) -> store.View:
    return store.recover(directory, "truncate")


def test_the_commit_log_walk_finds_every_record_and_blank(golden, directory, view):
    walked = [
        {"type": "blank", "physicalOffset": offset, "size": found.size}
        if isinstance(found, Blank)
        else {
            "type": "record",
            "physicalOffset": offset,
            "size": found.size,
            "topic": found.topic,
            "queueId": found.queue_id,
            "queueOffset": found.queue_offset,
            "sysFlag": found.sys_flag,
            "storeTimestamp": found.store_timestamp_ms,
            "crc32OfRecord": zlib.crc32(found.raw),
        }
        for offset, found in directory.log.walk(end=view.outcome.end)
    ]
    assert walked == [row for row in golden.rows if row["type"] in ("record", "blank")]


def test_the_log_begins_and_ends_where_rocketmq_says(golden, directory, view):
    (row,) = golden.rows_of("commitlog")
    assert (directory.log.minimum, view.outcome.end) == (row["minOffset"], row["maxOffset"])


def test_state_and_checkpoint(golden, directory):
    (state,) = golden.rows_of("state")
    assert directory.clean is not state["abort"]
    (row,) = golden.rows_of("checkpointBeforeLoad")
    times = row["physicMsgTimestamp"], row["logicsMsgTimestamp"], row["indexMsgTimestamp"]
    assert directory.checkpoint == Checkpoint(*times)


def test_delay_offsets(golden):
    file = golden.store / "config" / "delayOffset.json"
    expected = {
        int(level): offset for level, offset in golden.rows_of("delayOffset")[0]["offsetTable"].items()
    }
    assert (parse_offsets(file.read_text()) if file.exists() else {}) == expected


def test_queues_have_rocketmqs_bounds(golden, view):
    expected = {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"])
        for row in golden.rows_of("queue")
    }
    assert {key: (live.minimum, live.maximum) for key, live in view.queues.items()} == expected
    assert [
        max(e.physical_offset + e.size for e in view.queues[key].entries.values() if not e.is_hole)
        for key in expected
    ] == [row["maxPhysicOffset"] for row in golden.rows_of("queue")]


def test_every_message_of_every_queue_has_every_field(golden, directory, view):
    found = []
    for key, live in sorted(view.queues.items()):
        for offset, record in view.queue_messages(key).items():
            entry = live.entries[offset]
            ext = queue.read_ext(directory.ext_files.get(key, {}), entry.tags_code)
            found.append(as_rocketmq(offset, record, entry, ext))
    by_place = sorted(golden.rows_of("msg"), key=lambda r: (r["topic"], r["queueId"], r["queueOffset"]))
    assert found == by_place


def test_consume_queues_follow_from_the_log(golden, directory, view):
    """Where RocketMQ left no old bytes behind a cut, a rebuild gives its files to the byte."""
    file_size = golden.spec["config"]["mappedFileSizeConsumeQueue"]
    cut = bool(golden.spec.get("badRecord"))
    for key, entries in queue.entries_of(view.records).items():
        if key in directory.ext_files:
            continue
        for base, data in queue.queue_files(entries, file_size).items():
            written = golden.after[f"consumequeue/{key[0]}/{key[1]}/{base:020d}"]
            assert written[0] == file_size
            if not cut:
                assert written[1] == hashlib.sha256(data).hexdigest()


def test_offset_by_time_is_what_rocketmqs_bisection_finds(golden, view):
    """RocketMQ looks into one file, the first that was modified at or after the time; the oracle at the whole
    queue. In a queue of one file both land on a message of the same store timestamp, the oracle on the
    lowest."""
    file_size = golden.spec["config"]["mappedFileSizeConsumeQueue"]
    compared = 0
    for row in golden.rows_of("offsetByTime"):
        key = row["topic"], row["queueId"]
        messages = view.queue_messages(key)
        ours = view.offset_by_time(key, row["timestamp"])
        if max(messages) * queue.ENTRY_BYTES >= file_size:
            continue
        compared += 1
        assert messages[ours].store_timestamp_ms == messages[row["offset"]].store_timestamp_ms
        assert ours == min(o for o, m in messages.items() if m.store_timestamp_ms == row["timestamp"])
        assert ours <= row["offset"]
    assert compared >= 3


def test_offset_by_time_searches_the_whole_queue(unpack_golden):
    golden = unpack_golden("a_clean")
    view = store.recover(store.read_directory(golden.store))
    rows = [r for r in golden.rows_of("offsetByTime") if (r["topic"], r["queueId"]) == ("TopicTest", 0)]
    (row,) = [r for r in rows if r["offset"] == 299]
    assert view.offset_by_time(("TopicTest", 0), row["timestamp"]) == 370


def test_index_files_have_rocketmqs_headers(golden, directory, view):
    config = golden.spec["config"]
    files = store.rocketmq_index(directory, view, config["maxHashSlotNum"], config["maxIndexNum"])
    assert [
        {
            "type": "indexFile",
            "n": n,
            "size": len(file.data),
            "beginTimestamp": file.header.begin_ms,
            "endTimestamp": file.header.end_ms,
            "beginPhyOffset": file.header.begin_offset,
            "endPhyOffset": file.header.end_offset,
            "hashSlotCount": file.header.used_slots,
            "indexCount": file.header.next_entry if file.header.next_entry > 1 else 0,
        }
        for n, file in enumerate(files)
    ] == golden.rows_of("indexFile")


def test_queries_give_what_rocketmq_gives(golden, directory, view):
    config = golden.spec["config"]
    files = store.rocketmq_index(directory, view, config["maxHashSlotNum"], config["maxIndexNum"])
    answers = [
        {**row, "physicalOffsets": _in_log(directory, index.rocketmq_query(files, row["topic"], row["key"]))}
        for row in golden.rows_of("query")
    ]
    assert answers == golden.rows_of("query")


def _in_log(directory, offsets: list[int]) -> list[int]:
    """RocketMQ leaves out what its log no longer has, after the limit was applied."""
    return [offset for offset in offsets if offset >= directory.log.minimum]


@pytest.mark.parametrize(
    "golden",
    ["a_clean", "c_delay", "d_ext", "e_batch", "g_ipv6", "h_multi_index", "i_transaction"],
    indirect=True,
)
def test_an_index_file_built_from_the_log_is_rocketmqs(golden, view):
    """After a clean close all index files are there from the first record on: built again they are the same
    bytes."""
    config = golden.spec["config"]
    slots, capacity = config["maxHashSlotNum"], config["maxIndexNum"]
    written = store.index_files(golden.store / "index", slots, capacity)
    built: list[index.IndexFile] = []
    index.build(built, view.records, slots, capacity, repeat_last=False)
    assert written and [bytes(f.data) for f in built] == [bytes(f.data) for f in written]


def test_a_scan_finds_what_queries_find_and_more(golden, view):
    """RocketMQ's answers may hold strangers with the same hash and repeats, and lack what its recovery threw
    away; each other offset is the same."""
    for row in golden.rows_of("query"):
        scanned = [r.physical_offset for r in view.query(row["topic"], row["key"], 64)]
        held = {o for o in row["physicalOffsets"] if row["key"] in view.by_offset[o].index_keys}
        assert held <= set(scanned) or len(scanned) == 64
        assert scanned == sorted(scanned, reverse=True)


def test_keep_loses_only_the_damaged_record(unpack_golden):
    whole = store.recover(store.read_directory(unpack_golden("b_crash").store))
    golden = unpack_golden("f3_torn_middle")
    bad = golden.spec["badRecord"]
    directory = store.read_directory(golden.store)
    view = store.recover(directory, "keep")
    assert [r.raw for r in view.records] == [r.raw for r in whole.records if r.physical_offset != bad]
    assert view.outcome.holes == ((bad, whole.by_offset[bad].end),)
    lost = whole.by_offset[bad]
    entries = view.queues[lost.topic, lost.queue_id].entries
    assert entries[lost.queue_offset].physical_offset in (bad, 0)


def test_keep_cuts_a_torn_tail(unpack_golden):
    golden = unpack_golden("f1_torn_tail_zeroed")
    view = store.recover(store.read_directory(golden.store), "keep")
    assert view.outcome.end == golden.spec["badRecord"]
    assert view.outcome.holes == ()


@pytest.mark.parametrize("host_bytes", [8, 20])
def test_a_flipped_byte_of_the_body_ends_the_walk(unpack_golden, host_bytes):
    """Whether an IPv4 or an IPv6 host stands before the body."""
    golden = unpack_golden("g_ipv6")
    directory = store.read_directory(golden.store)
    records = store.recover(directory).records
    number = next(n for n in range(9, len(records)) if len(records[n].born_host) == host_bytes)
    victim = records[number]
    base = victim.physical_offset - victim.physical_offset % directory.log.file_size
    body_at = victim.physical_offset - base + victim.raw.index(victim.body)
    for at in range(body_at, body_at + len(victim.body)):
        damaged = bytearray(directory.log.files[base])
        damaged[at] ^= 0xFF
        log = Log(directory.log.file_size, {**directory.log.files, base: bytes(damaged)})
        assert len(log.records()) == number


def test_the_encoders_write_rocketmqs_bytes(golden, directory, view):
    for record in view.records:
        assert encode(replace(record, checksum=0, raw=b"")).raw == record.raw
    for entries in directory.entries.values():
        for entry in entries.values():
            assert queue.parse_entry(queue.encode_entry(entry)) == entry
    for key, files in directory.ext_files.items():
        for address in (e.tags_code for e in directory.entries[key].values()):
            unit = queue.read_ext(files, address)
            written = queue.encode_ext(unit.tags_code, unit.store_timestamp_ms, unit.bitmap)
            base, at = divmod(address + 2**63, len(files[0]))
            assert files[base * len(files[0])][at : at + unit.size] == written
    assert encode_checkpoint(directory.checkpoint) == (golden.store / "checkpoint").read_bytes()


@pytest.mark.parametrize("golden", [n for n in NAMES if n not in ("k_edge", "e_batch")], indirect=True)
def test_records_laid_out_again_are_rocketmqs_log(golden, directory, view):
    """Not where a record was larger than a whole file (RocketMQ left a file of blank alone) and not where a
    batch went into the next file as a whole."""
    log, _, end = lay_out(view.records, directory.log.file_size, directory.log.minimum)
    assert end == view.outcome.end
    assert log.files == directory.log.zeroed_from(end)
