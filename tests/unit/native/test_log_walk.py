"""Goal: the scan kernel stops at whatever is not as its queue, its entries or its index say, and continues once it
was judged. Method: known records, one thing wrong at a time. Damaged and cut bytes are in
tests/property/test_scan.py."""

from __future__ import annotations

import pytest

from cystore._native.scan import log_walk
from tests.oracle import queue
from tests.oracle.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexFile, build
from tests.oracle.log import lay_out
from tests.oracle.record import Record
from tests.support.recovery_stores import make_records

SLOTS, CAPACITY = 7, 100


class Walk:
    """A scanner over one file of records of the queues T/0 and T/1, in turn."""

    def __init__(self, count: int = 20, **settings):
        self.log, self.records, self.end = lay_out(make_records(count, queues=2), 1 << 16)
        self.data = self.log.files[0]
        self.scanner = log_walk.LogWalker(**settings)
        self.scanner.limit = self.end
        self.scanner.move(0, 1 << 16)

    def run(self) -> int:
        return self.scanner.run(self.data, len(self.data), 0)

    def add_queues(self, next_: int = 0, limit: int = 0) -> None:
        for queue_id in (0, 1):
            assert self.scanner.add_queue(b"T", queue_id, next_, limit) == queue_id

    def entries(self, queue_id: int) -> bytes:
        return b"".join(
            queue.encode_entry(e) for _, e in sorted(queue.entries_of(self.records)["T", queue_id].items())
        )


def test_a_queue_is_asked_for_once():
    walk = Walk()
    for queue_id in (0, 1):
        assert walk.run() == log_walk.NEW_QUEUE
        assert walk.scanner.record()[:3] == (b"T", queue_id, 0)
        walk.scanner.add_queue(b"T", queue_id, 0, 0)
    assert walk.run() == log_walk.LIMIT
    assert (walk.scanner.position, walk.scanner.record_count) == (walk.end, 20)
    assert [walk.scanner.queue_next(slot) for slot in (0, 1)] == [10, 10]
    assert walk.scanner.queue_first(1) == (0, walk.records[1].physical_offset)


def test_many_queues_are_told_apart():
    walk = Walk()
    for number in range(1000):
        walk.scanner.add_queue(f"other{number}".encode(), number % 3, 0, 0)
    walk.scanner.add_queue(b"T", 0, 0, 0)
    walk.scanner.add_queue(b"T", 1, 0, 0)
    assert walk.run() == log_walk.LIMIT
    assert [walk.scanner.queue_next(slot) for slot in (999, 1000, 1001)] == [0, 10, 10]


@pytest.mark.parametrize("expected", [1, 5])
def test_a_queue_offset_that_does_not_follow_stops_until_it_is_accepted(expected):
    walk = Walk()
    walk.add_queues(expected)
    assert walk.run() == log_walk.OUT_OF_SEQUENCE
    assert (walk.scanner.position, walk.scanner.slot) == (0, 0)
    walk.scanner.accept()
    assert walk.run() == log_walk.OUT_OF_SEQUENCE
    assert walk.scanner.slot == 1
    assert walk.scanner.queue_next(0) == expected, "an accepted offset does not take the count back"


@pytest.mark.parametrize("length", [1, 7, 8, 9, 12, 16, 17, 127])
def test_each_record_has_a_topic_of_its_own(length):
    """It is compared with that of the record before, several bytes at once, before its characters are looked at."""
    log, records, end = lay_out([Record("T" * length) for _ in range(3)], 1 << 16)
    topic_at = log.files[0].index(b"T" * length, records[1].physical_offset)
    for at in range(topic_at, topic_at + length):
        for byte, status, count in (
            (b"U", log_walk.LIMIT, 3),
            (b"!", log_walk.INVALID, 1),
            (b"\xd4", log_walk.INVALID, 1),
        ):
            data = log.files[0][:at] + byte + log.files[0][at + 1 :]
            scanner = log_walk.LogWalker(check_checksum=False, follow_queues=False)
            scanner.limit = end
            scanner.move(0, len(data))
            assert (scanner.run(data, len(data), 0), scanner.record_count) == (status, count), at


def test_a_search_does_not_go_by_the_topics_of_an_earlier_call():
    log, records, end = lay_out([Record("T" * 9, queue_offset=number) for number in range(2)], 1 << 16)
    topic_at = log.files[0].index(b"T" * 9)
    before = bytearray(log.files[0])
    scanner = log_walk.LogWalker(check_checksum=False)
    scanner.add_queue(b"T" * 9, 0, -1, 0)
    scanner.limit = end
    scanner.move(0, len(before))
    assert scanner.run(before, len(before), 0) == log_walk.LIMIT
    damaged = log.files[0][:topic_at] + b"!" + log.files[0][topic_at + 1 :]
    before[:] = damaged.replace(b"T" * 9, b"!" + b"T" * 8)
    scanner.move(0, len(damaged))
    assert scanner.find(damaged, len(damaged), 0) == records[1].physical_offset


def test_a_record_that_was_never_looked_at_is_not_told():
    walk = Walk(follow_queues=False)
    with pytest.raises(ValueError, match="no record"):
        walk.scanner.record()
    assert walk.scanner.run(b"\xff" * 200, 200, 0) == log_walk.INVALID
    with pytest.raises(ValueError, match="no record"):
        walk.scanner.record()


def test_damage_stepped_over_is_counted_for_each_queue():
    walk = Walk()
    walk.add_queues()
    walk.scanner.limit = walk.records[4].physical_offset
    assert walk.run() == log_walk.LIMIT
    walk.scanner.step_over(walk.records[5].physical_offset, 1 << 16)
    walk.scanner.limit = walk.end
    assert walk.run() == log_walk.OUT_OF_SEQUENCE
    assert (walk.scanner.slot, walk.scanner.queue_next(0)) == (0, 2)
    assert walk.scanner.swallowed_since(0) == walk.records[4].size
    assert walk.scanner.swallowed_since(1) == 0


def test_entries_are_asked_for_and_compared():
    walk = Walk()
    walk.add_queues(limit=10)
    asked = []
    while (status := walk.run()) == log_walk.ENTRIES:
        slot, wanted = walk.scanner.slot, walk.scanner.wanted
        asked.append((slot, wanted))
        walk.scanner.set_entries(slot, walk.entries(slot)[20 * wanted : 20 * (wanted + 4)], wanted)
    assert status == log_walk.LIMIT
    assert asked == [(0, 0), (1, 0), (0, 4), (1, 4), (0, 8), (1, 8)]
    assert [walk.scanner.queue_missing(slot) for slot in (0, 1)] == [-1, -1]


@pytest.mark.parametrize("at", [7, 11, 19])
def test_another_entry_stops_and_a_limit_makes_it_missing(at):
    walk = Walk(compare_tags=True)
    walk.add_queues(limit=10)
    wrong = bytearray(walk.entries(1))
    wrong[20 * 3 + at] ^= 1
    walk.scanner.set_entries(0, walk.entries(0), 0)
    walk.scanner.set_entries(1, bytes(wrong), 0)
    assert walk.run() == log_walk.OTHER_ENTRY
    assert (walk.scanner.slot, walk.scanner.wanted) == (1, 3)
    walk.scanner.limit_entries(1, 3)
    assert walk.run() == log_walk.LIMIT
    assert walk.scanner.queue_missing(0) == -1
    assert walk.scanner.queue_missing(1) == walk.records[7].physical_offset


def test_tags_are_compared_only_where_asked_for():
    walk = Walk()
    walk.add_queues(limit=10)
    wrong = bytearray(walk.entries(1))
    wrong[20 * 3 + 19] ^= 1
    walk.scanner.set_entries(0, walk.entries(0), 0)
    walk.scanner.set_entries(1, bytes(wrong), 0)
    assert walk.run() == log_walk.LIMIT


def index_entries(walk: Walk) -> bytes:
    files: list[IndexFile] = []
    build(files, walk.records, SLOTS, CAPACITY, repeat_last=False)
    at = HEADER_BYTES + SLOT_BYTES * SLOTS + ENTRY_BYTES
    return bytes(files[0].data[at : at + ENTRY_BYTES * len(walk.records)])


def test_keys_are_asked_for_and_compared():
    walk = Walk(follow_queues=False)
    walk.scanner.compare_keys(0, 20)
    entries, asked = index_entries(walk), []
    while (status := walk.run()) == log_walk.KEYS:
        asked.append(walk.scanner.wanted)
        walk.scanner.set_keys(
            entries[ENTRY_BYTES * walk.scanner.wanted :][: ENTRY_BYTES * 8], walk.scanner.wanted
        )
    assert (status, asked, walk.scanner.keys_at) == (log_walk.LIMIT, [0, 8, 16], 20)


@pytest.mark.parametrize("at", [0, 11])
def test_another_key_stops_and_can_be_skipped(at):
    walk = Walk(follow_queues=False)
    walk.scanner.compare_keys(0, 20)
    entries = bytearray(index_entries(walk))
    entries[ENTRY_BYTES * 5 + at] ^= 1
    walk.scanner.set_keys(bytes(entries), 0)
    assert walk.run() == log_walk.OTHER_KEY
    assert walk.scanner.position == walk.records[5].physical_offset
    walk.scanner.skip_keys(6)
    assert walk.run() == log_walk.LIMIT


def test_a_record_entered_twice_is_no_damage():
    """RocketMQ may enter the last record of a file again."""
    walk = Walk(follow_queues=False)
    entries = index_entries(walk)
    repeated = entries[: ENTRY_BYTES * 6] + entries[ENTRY_BYTES * 5 :]
    walk.scanner.compare_keys(0, 21)
    walk.scanner.set_keys(repeated, 0)
    assert walk.run() == log_walk.LIMIT


def test_time_may_go_back_only_below_the_watermark():
    records = make_records(6, queues=1)
    records[3] = records[3].__class__(
        topic="T", queue_id=0, queue_offset=3, magic=records[0].magic, store_timestamp_ms=1
    )
    log, written, end = lay_out(records, 1 << 16)
    for watermark, expected in ((0, log_walk.BACK_IN_TIME), (written[4].physical_offset, log_walk.LIMIT)):
        scanner = log_walk.LogWalker(follow_queues=False, in_time_order=True, watermark=watermark)
        scanner.limit = end
        scanner.move(0, 1 << 16)
        assert scanner.run(log.files[0], 1 << 16, 0) == expected


@pytest.mark.parametrize(
    ("length", "begin"), [(0, 0), (-1, 0), (1 << 17, 0), (100, 200), (100, -1), (100, (1 << 16) - 50)]
)
def test_bytes_that_do_not_hold_the_position_are_refused(length, begin):
    walk = Walk()
    with pytest.raises(ValueError, match="position"):
        walk.scanner.run(walk.data, length, begin)


def test_what_is_no_queue_is_refused():
    scanner = Walk().scanner
    for topic in (b"", b"x" * 128):
        with pytest.raises(ValueError, match="topic"):
            scanner.add_queue(topic, 0, 0, 0)
    with pytest.raises(IndexError):
        scanner.queue_next(0)
    with pytest.raises(ValueError, match="no record"):
        scanner.record()


@pytest.mark.parametrize("zeros", [0, 1, 7, 8, 9, 4096])
@pytest.mark.parametrize("rest", [b"", b"\1", b"\1\0\0\2"])
def test_zeros_at_either_end(zeros, rest):
    assert log_walk.leading_zeros(bytes(zeros) + rest) == zeros
    assert log_walk.trailing_zeros(rest + bytes(zeros)) == zeros


def test_several_files_in_one_call():
    log, records, end = lay_out(make_records(40), 2048)
    bases = sorted(log.files)
    assert len(bases) == 4
    data = b"".join(log.files[base] for base in bases)
    walk = log_walk.LogWalker(follow_queues=False)
    walk.limit = end
    walk.move(records[3].physical_offset, 2048)
    assert walk.run_files(data, len(data), 0, 2048) == log_walk.LIMIT
    assert (walk.position, walk.record_count) == (end, 37)
    # With too few files it stops at the last blank there is.
    walk.move(0, 2048)
    assert walk.run_files(data, 3 * 2048, 0, 2048) == log_walk.BLANK
    assert 2 * 2048 < walk.position < 3 * 2048


@pytest.mark.parametrize(
    ("position", "file_end", "length", "file_bytes"),
    [
        (0, 2048, 4096, 0),
        (0, 2048, 4096, 1000),
        (0, 2048, 8192, 2048),
        (0, 3000, 4096, 2048),
        (0, 4096, 4096, 2048),
        (5000, 6144, 4096, 2048),
        (0, 2048, 0, 2048),
    ],
)
def test_files_that_are_not_in_the_bytes_are_refused(position, file_end, length, file_bytes):
    walk = log_walk.LogWalker(follow_queues=False)
    walk.limit = 1 << 40
    walk.move(position, file_end)
    with pytest.raises(ValueError, match="file"):
        walk.run_files(bytes(4096), length, 0, file_bytes)


@pytest.mark.parametrize("left", range(8))
def test_a_file_that_ends_with_less_than_a_blank_is_damaged(left):
    """A crafted file; the scanner must not read behind it."""
    log, _records, end = lay_out(make_records(3), 1 << 16)
    data = log.files[0][:end] + b"\0" * left
    walk = log_walk.LogWalker(follow_queues=False)
    walk.limit = 1 << 40
    walk.move(0, len(data))
    assert walk.run(data, len(data), 0) == log_walk.INVALID
    assert walk.position == end
