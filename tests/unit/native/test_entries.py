"""Goal: what is gathered from records is what their queues and the index hold. Method: random records against the
oracle's queues and index, in pieces of every size."""

from __future__ import annotations

import pytest

from cystore._native.derived import entries as kernel
from cystore._native.memory.mapping import MappedFile
from cystore.derived.files.index_layout import file_length
from tests.oracle import queue
from tests.oracle.log import lay_out
from tests.oracle.record import ROCKETMQ_MAGIC
from tests.support.recovery_stores import make_records

FILE_BYTES = 1 << 16


def gathered(reader: kernel.EntryReader, data: bytes, end: int):
    """All runs, all keys and the last status."""
    runs, keys, position, status = [], b"", 0, kernel.FULL
    while status == kernel.FULL:
        status = reader.run(data, 0, position, end)
        position = reader.position
        more = reader.take(True)
        runs += more[0]
        keys += more[1]
    return runs, keys, status


@pytest.fixture(params=["cystore", "rocketmq"])
def log(request):
    more = {"magic": ROCKETMQ_MAGIC} if request.param == "rocketmq" else {}
    _, records, end = lay_out(make_records(100, **more), FILE_BYTES, 0)
    data = bytearray(FILE_BYTES)
    for record in records:
        data[record.physical_offset : record.end] = record.raw
    return bytes(data), records, end


@pytest.mark.parametrize("rows", [1, 2, 7, 100, 5000])
def test_entries_are_those_of_the_queues(log, rows):
    data, records, end = log
    runs, keys, status = gathered(kernel.EntryReader(rows=rows), data, end)
    assert status == kernel.LIMIT
    found: dict[tuple[str, int], bytes] = {}
    for topic, queue_id, offset, _, _, entries, timestamps in runs:
        key = topic.decode(), queue_id
        assert offset * queue.ENTRY_BYTES == len(found.get(key, b""))
        assert len(timestamps) * queue.ENTRY_BYTES == len(entries) * 8
        found[key] = found.get(key, b"") + entries
    assert found == {
        key: b"".join(queue.encode_entry(entry) for _, entry in sorted(entries.items()))
        for key, entries in queue.entries_of(records).items()
    }
    assert len(keys) == kernel.KEY_BYTES * sum(len(record.index_keys) for record in records)


def test_a_gap_in_the_offsets_begins_another_run(log):
    data, records, _ = log
    reader = kernel.EntryReader()
    reader.run(data, 0, 0, records[30].physical_offset)
    reader.run(data, 0, records[33].physical_offset, records[60].physical_offset)
    assert [(run[1], run[2]) for run in reader.take()[0]] == [
        (0, 0),
        (0, 11),
        (1, 0),
        (1, 11),
        (2, 0),
        (2, 11),
    ]


def test_a_damaged_record_stops_the_walk(log):
    data, records, end = log
    bad = bytearray(data)
    bad[records[40].physical_offset + 95] ^= 1
    reader = kernel.EntryReader()
    assert reader.run(bytes(bad), 0, 0, end) == kernel.INVALID
    assert reader.position == records[40].physical_offset
    assert sum(len(run[5]) for run in reader.take()[0]) == 40 * queue.ENTRY_BYTES


def test_keys_fill_one_index_file_after_the_other(log):
    data, _, end = log
    _, keys, _ = gathered(kernel.EntryReader(), data, end)
    at = 0
    for expected in (39, 78, 100):
        file = MappedFile.anonymous(0, file_length(7, 40))
        at = kernel.put_keys(file, 7, 40, keys, at)
        assert at == expected


@pytest.mark.parametrize(
    ("position", "limit", "length"), [(-1, 10, 100), (20, 10, 100), (100, 200, 100), (0, 0, 0)]
)
def test_places_outside_are_refused(position, limit, length):
    with pytest.raises(ValueError, match="is not in"):
        kernel.EntryReader().run(bytes(length), 0, position, limit)


def test_bad_keys_are_refused():
    file = MappedFile.anonymous(0, file_length(7, 40))
    with pytest.raises(ValueError, match="no keys"):
        kernel.put_keys(file, 7, 40, b"x", 0)
    with pytest.raises(ValueError, match="no index file"):
        kernel.put_keys(file, 8, 40, b"", 0)
    with pytest.raises(ValueError, match="rows"):
        kernel.EntryReader(rows=0)
