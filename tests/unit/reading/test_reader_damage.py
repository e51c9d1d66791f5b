"""Goal: holes, removed messages and damaged bytes are stepped over or reported, and never served. Method: entries,
index files and log bytes are damaged one by one, and anywhere by hypothesis, and what is read is held against what
was written."""

from __future__ import annotations

import contextlib
import tempfile
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore.errors import CorruptRecordError, OffsetError
from cystore.results import GetStatus
from tests.oracle import queue as oracle_queue
from tests.oracle.log import lay_out
from tests.oracle.record import CYSTORE_MAGIC
from tests.support import parts
from tests.support.property.strategies import WrittenLog, damage, logs
from tests.unit.reading.test_reader import CONFIG, NOW, offsets, offsets_of, opened, record


def holed(root: Path, first: int, last: int, count: int = 12) -> parts.Parts:
    """A queue of which messages `first` to before `last` are in a hole."""
    records = [record(n, tags="a", keys=f"k{n}") for n in range(count)]
    written = WrittenLog(*lay_out(records, 8192))
    ends = [r.physical_offset for r in written.records] + [written.end]
    store, _ = opened(root, records, holes=[(ends[first], ends[last])])
    return store


def test_hole_entries_are_stepped_over(tmp_path):
    store = holed(tmp_path, 3, 6)
    result = store.reader.get("T", 0, 0)
    assert offsets(result) == [0, 1, 2, 6, 7, 8, 9, 10, 11] and result.next_offset == 12
    assert offsets(store.reader.get("T", 0, 3, 1)) == [6]
    assert offsets(store.reader.get("T", 0, 4, 2, tags="a")) == [6, 7]


def test_where_only_holes_are_left_messages_were_removed(tmp_path):
    store = holed(tmp_path, 3, 6)
    slot = store.control.find_queue("T", 0)
    store.control.set_queue_next(slot, 6)
    store.control.set_queue_dispatched(slot, 6)
    result = store.reader.get("T", 0, 3)
    assert (result.status, result.next_offset, result.messages) == (GetStatus.MESSAGE_WAS_REMOVING, 6, [])
    raw = store.reader.get("T", 0, 3, raw=True)
    assert (raw.status, raw.raw, raw.record_offsets) == (GetStatus.MESSAGE_WAS_REMOVING, b"", array("q"))


def test_no_entry_leads_into_a_hole(tmp_path):
    records = [record(n, keys="all") for n in range(12)]
    store, written = opened(tmp_path, records)
    hole = written.records[4].physical_offset, written.records[6].physical_offset
    second = parts.attach(tmp_path, CONFIG, minimum=0, wrote=0, control=store.control, holes=[hole])
    assert offsets_of(second.reader.query("T", "all")) == [11, 10, 9, 8, 7, 6, 3, 2, 1, 0]
    assert offsets(second.reader.get("T", 0, 0)) == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    times = [second.reader.offset_by_time("T", 0, NOW + 1000 * n) for n in range(12)]
    assert times == [0, 1, 2, 3, 3, 6, 6, 7, 8, 9, 10, 11]


def test_messages_below_the_minimum_are_gone(tmp_path):
    store, written = opened(tmp_path, [record(n, keys="all") for n in range(200)])
    left = [r.queue_offset for r in written.records if r.physical_offset >= 8192]
    store.control.min_physical_offset = 8192
    result = store.reader.get("T", 0, 0)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 64)
    assert offsets(store.reader.get("T", 0, left[0] - 3)) == list(range(left[0], min(left[0] + 32, 128)))
    assert offsets_of(store.reader.query("T", "all", 1000)) == left[::-1]
    assert store.reader.offset_by_time("T", 0, 0) in (0, left[0])


def damaged_body(root: Path, written: WrittenLog, number: int) -> None:
    bad = written.records[number]
    base = bad.physical_offset - bad.physical_offset % 8192
    path = root / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[bad.physical_offset - base + 95] ^= (
        0x40  # a body byte: IPv4 hosts end at 88, the body's length at 92
    )
    path.write_bytes(data)


@pytest.mark.parametrize("raw", [False, True])
def test_a_damaged_message_ends_the_batch_before_it_and_is_an_error_when_first(tmp_path, raw):
    store, written = opened(tmp_path, [record(n, body=b"a longer body", keys="all") for n in range(10)])
    damaged_body(tmp_path, written, 4)
    result = store.reader.get("T", 0, 0, raw=raw)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 4)
    assert len(result.record_offsets if raw else result.messages) == 4
    if raw:
        assert result.raw == b"".join(r.raw for r in written.records[:4])
    with pytest.raises(CorruptRecordError) as caught:
        store.reader.get("T", 0, 4, raw=raw)
    assert caught.value.offset == written.records[4].physical_offset
    assert str(caught.value.path).endswith(f"commitlog/{0:020d}")
    assert len(store.reader.get("T", 0, 5).messages) == 5
    found = store.reader.query("T", "all")
    assert offsets_of(found) == [9, 8, 7, 6, 5, 3, 2, 1, 0]
    assert [error.offset for error in found.damaged] == [written.records[4].physical_offset]


@pytest.mark.parametrize(("physical_offset", "size"), [(0, 0), (-5, 100), (2**62, 100), (0, 99_999)])
def test_an_entry_that_leads_out_of_the_log_is_written_again(tmp_path, physical_offset, size):
    store, _ = opened(tmp_path, [record(n) for n in range(5)])
    rewrite_entry(store, 2, physical_offset, size)
    assert offsets(store.reader.get("T", 0, 0)) == [0, 1]
    assert offsets(store.reader.get("T", 0, 2)) == [2, 3, 4]
    assert store.reader.counters()["healed_entries"] > 0


def rewrite_entry(store: parts.Parts, number: int, physical_offset: int, size: int) -> None:
    queue = store.queues.find("T", 0)
    assert queue is not None
    file = queue.file_of(number)
    assert file is not None
    file.write(
        number * 20 - file.base, physical_offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big")
    )


@pytest.mark.parametrize("inside", [0, 4])
def test_an_entry_that_leads_to_another_record_or_inside_one_is_written_again(tmp_path, inside):
    store, written = opened(tmp_path, [record(n, queue_id=0) for n in range(5)])
    other = written.records[3]
    rewrite_entry(store, 2, other.physical_offset + inside, other.size)
    assert offsets(store.reader.get("T", 0, 2)) == [2, 3, 4]
    assert store.reader.get("T", 0, 2).messages[0].physical_offset == written.records[2].physical_offset
    assert store.reader.counters()["healed_entries"] > 0


@given(logs(file_size=8192, max_records=20, magic=st.just(CYSTORE_MAGIC)), st.data())
def test_no_damage_is_served(written, data):
    """Whatever bytes of queues, index and log are damaged: a message comes as it was written, or not at all (I8)."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        parts.write_log(root, written.log)
        store = parts.attach(root, CONFIG, minimum=0, wrote=written.end)
        store.dispatcher.run_to_end()
        hurt = [path for path in root.rglob("*") if path.is_file()]
        for path in data.draw(st.lists(st.sampled_from(sorted(hurt)), min_size=1, max_size=3)):
            # In place: others have the file mapped.
            with path.open("r+b") as file:
                whole = file.read()
                used = len(whole.rstrip(b"\0")) + 8 if path.parent.name != "index" else len(whole)
                file.seek(0)
                file.write(data.draw(damage(whole[:used])))
        sound = {r.physical_offset: r.raw for r in written.records}

        for topic, queue_id in oracle_queue.entries_of(written.records):
            for offset in range(12):
                with contextlib.suppress(CorruptRecordError):
                    result = store.reader.get(topic, queue_id, offset)
                    assert [m.queue_offset for m in result.messages] == sorted(
                        m.queue_offset for m in result.messages
                    )
                    assert all((m.topic, m.queue_id) == (topic, queue_id) for m in result.messages)
                    assert result.next_offset > offset or not result.messages
                    raw = store.reader.get(topic, queue_id, offset, raw=True)
                    ends = [*raw.record_offsets[1:], len(raw.raw)] if raw.record_offsets else []
                    for message, begin, end in zip(result.messages, raw.record_offsets, ends, strict=True):
                        assert raw.raw[begin:end] == sound[message.physical_offset]
            with contextlib.suppress(CorruptRecordError, OffsetError):
                store.reader.offset_by_time(topic, queue_id, NOW)
        for r in written.records:
            for key in r.index_keys:
                with contextlib.suppress(CorruptRecordError):
                    for message in store.reader.query(r.topic, key):
                        assert key in message.keys or key == message.properties["UNIQ_KEY"]
                        assert message.physical_offset in sound
