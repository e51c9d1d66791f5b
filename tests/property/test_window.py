"""Goal: a window over any number of segments gives the record of each offset, asks for each segment once, and keeps no
mapping that it may not keep. Method: gets in any order while the log's bounds move, compared with the written bodies;
weak references to the mappings."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore._native.derived.queue import BatchLimits
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message
from cystore._native.record.window import Drops, LogWindow
from cystore.errors import OffsetError, StoreResourceError
from tests.oracle.queue import encode_entry, entry_of
from tests.oracle.record import Record, encode
from tests.support.parts import QueueInMemory

BYTES = 512  # of a segment
WANTED = 2000  # records of a batch
LIMITS = BatchLimits(
    memory_bytes=1 << 60,
    bytes_in_memory=1 << 30,
    count_in_memory=WANTED,
    bytes_in_disk=1 << 30,
    count_in_disk=WANTED,
)
PARTS, SEGMENTS = 64, 16384  # the most files of a window: of any length, or of one


class Log:
    """A record at the begin of each segment. `numbers` are those of the segments; `length` is theirs, or that of the
    parts of them that are mapped."""

    def __init__(self, numbers: list[int], length: int = BYTES) -> None:
        self.places = [BYTES * number for number in numbers]
        self.minimum, self.wrote = 0, max(self.places) + BYTES
        self.asked: list[int] = []
        self.mapped: dict[int, weakref.ref[MappedFile]] = {}
        self.length = length
        records = [
            encode(Record(topic="T", queue_offset=n, physical_offset=at, body=b"%d" % at))
            for n, at in enumerate(self.places)
        ]
        self.records = {record.physical_offset: record for record in records}
        entries = b"".join(encode_entry(entry_of(record)) for record in records)
        self.queue = QueueInMemory(self.wrote, LIMITS)
        self.queue.fill(entries)

    def segment_for(self, offset: int) -> MappedFile:
        if offset < self.minimum:
            raise OffsetError("cleaned", offset=offset)
        self.asked.append(offset // BYTES)
        base = offset - offset % BYTES
        file = MappedFile.anonymous(base, self.length)
        file.write(0, self.records[base].raw)
        self.mapped[base] = weakref.ref(file)
        return file

    def window(self, drops: Drops | None = None, segment_bytes: int = BYTES, holes=()) -> LogWindow:
        return LogWindow(self.segment_for, holes, None, segment_bytes, drops)

    def get(self, window: LogWindow, first: int, count: int) -> tuple[list[int], int]:
        """The places of the messages of a batch, after a look at their bodies, and the entries examined."""
        found, done = self.messages(window, first, count)
        assert [bytes(message.body) for message in found] == [b"%d" % m.physical_offset for m in found]
        return [message.physical_offset for message in found], done

    def messages(self, window: LogWindow, first: int, count: int) -> tuple[list[Message], int]:
        self.queue.control.min_physical_offset = self.minimum
        result, done = self.queue.get(first, count, window=window)
        return result.messages, done

    def kept(self) -> set[int]:
        """The segments that are still mapped."""
        return {base // BYTES for base, file in self.mapped.items() if file() is not None}


numbers = st.one_of(
    st.integers(1, 300).map(lambda count: list(range(count))),
    st.lists(st.integers(0, 40_000), min_size=1, max_size=30, unique=True).map(sorted),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["get", "get", "get", "clean", "drop", "hole"]), st.integers(0), st.integers(1, 100)
    ),
    max_size=20,
)


@given(numbers, steps, st.booleans())
def test_each_record_is_found_whatever_came_before(segments, calls, one_length):
    log, drops = Log(segments, BYTES if one_length else BYTES - 8), Drops()
    window = log.window(drops, BYTES if one_length else 0)
    hole: set[int] = set()
    for call, where, count in calls:
        first = where % len(log.places)
        if call == "clean":
            log.minimum = max(log.minimum, log.places[first])
        elif call == "drop":
            drops.dropped()
        elif call == "hole":
            hole = {log.places[first]}
            window = log.window(
                drops, BYTES if one_length else 0, [(log.places[first], log.places[first] + 8)]
            )
        else:
            count = min(count, len(log.places) - first)
            at = first
            while at < first + count:
                places, done = log.get(window, at, first + count - at)
                assert done > 0
                expected = [place for place in log.places[at : at + done] if place >= log.minimum]
                assert places == [place for place in expected if place not in hole]
                at += done
            assert all(base * BYTES + log.length > log.minimum for base in log.kept())


@pytest.mark.parametrize("count", [1, 8, 9, 64, 65, 1000])
def test_each_segment_is_asked_for_once(count):
    log = Log(list(range(count)))
    window = log.window()
    for first in [*range(0, count, 3), *range(1, count, 3), 0]:
        log.get(window, first, min(count - first, 1))
    assert log.get(window, 0, count) == (log.places, count)
    assert sorted(log.asked) == list(range(count))


def test_segments_below_the_minimum_are_let_go():
    log = Log(list(range(100)))
    window = log.window()
    log.get(window, 0, 100)
    held, _ = log.messages(window, 10, 1)
    log.minimum = log.places[60] + 8  # inside the segment: it stays
    log.get(window, 80, 1)
    assert log.kept() == {10, *range(60, 100)}
    assert bytes(held[0].body) == b"%d" % log.places[10]
    del held
    assert log.kept() == set(range(60, 100))


def test_a_budget_that_drops_mappings_is_heeded():
    log, drops = Log(list(range(200))), Drops()
    window = log.window(drops)
    log.get(window, 0, 200)
    log.get(window, 0, 1)
    assert len(log.kept()) == 200
    drops.dropped()
    log.get(window, 7, 1)
    assert log.kept() == {7}
    log.get(window, 7, 20)
    drops.dropped()
    log.get(window, 7, 1)
    assert len(log.kept()) == 20  # a few may stay


def test_a_batch_ends_where_its_segments_are_more_than_the_budget():
    log, drops = Log(list(range(200))), Drops()

    def dropping(offset: int) -> MappedFile:
        drops.dropped()
        return log.segment_for(offset)

    window = LogWindow(dropping, (), None, BYTES, drops)
    assert log.get(window, 0, 200) == (log.places[:33], 33)
    assert log.get(window, 33, 100)[0] == log.places[33:66]
    assert log.kept() == set(range(33, 66))


def test_a_drop_empties_the_lists_of_spare_windows():
    log, drops = Log(list(range(4))), Drops()
    spare = [log.window(drops)]
    log.get(spare[0], 0, 4)
    drops.empties(spare)
    assert log.kept() == {0, 1, 2, 3}
    drops.dropped()
    assert spare == []
    assert log.kept() == set()


@pytest.mark.parametrize("bytes_known", [True, False])
def test_a_window_lets_its_segments_go_if_there_is_no_room_for_one_more(bytes_known):
    log = Log(list(range(50)))

    def in_little_memory(offset: int) -> MappedFile:
        if len(log.kept()) >= 10:
            raise StoreResourceError("no room")
        return log.segment_for(offset)

    window = LogWindow(in_little_memory, (), None, BYTES if bytes_known else 0, None)
    for number in range(25):
        assert log.get(window, number, 1) == ([log.places[number]], 1)
    assert log.kept() == set(range(20, 25))
    assert log.get(window, 25, 25) == (log.places[25:30], 5)  # the batch needs the segments that it has
    assert log.get(window, 30, 20) == (log.places[30:40], 10)
    held = [log.segment_for(at) for at in log.places[:10]]
    with pytest.raises(StoreResourceError):
        log.get(window, 40, 1)
    del held
    assert log.get(window, 40, 1) == ([log.places[40]], 1)


def test_a_full_window_ends_a_batch_that_has_messages():
    far = Log([1, 2, 1 + SEGMENTS, 2 + SEGMENTS, 3])
    window = far.window()
    assert far.get(window, 0, 5) == (far.places[:2], 2)
    assert far.get(window, 2, 2) == ([far.places[2]], 1)
    assert far.get(window, 3, 1) == ([far.places[3]], 1)
    assert far.kept() == {1 + SEGMENTS, 2 + SEGMENTS}  # each batch takes the place of one of them
    parts = Log(list(range(PARTS + 5)), BYTES - 8)
    window = parts.window(segment_bytes=0)
    assert parts.get(window, 0, PARTS + 5) == (parts.places[:PARTS], PARTS)
    assert parts.get(window, PARTS, 5) == (parts.places[PARTS:], 5)
    assert parts.kept() == set(range(PARTS, PARTS + 5))


def test_a_file_of_another_length_is_found_beside_the_others():
    """A part of a segment where whole segments were expected: the window keeps what it has."""
    log = Log(list(range(12)))
    window = log.window()
    log.get(window, 0, 9)
    log.length = BYTES - 8
    assert log.get(window, 0, 12) == (log.places, 12)
    assert sorted(log.asked) == list(range(12))
    assert len(log.kept()) == 12
