"""Goal: a consume queue that is deleted or damaged while processes are attached heals from the log, and everybody
stays. Method: files of a live store are removed, zeroed or changed; several processes read and put on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cystore
from cystore import clock
from cystore.errors import CorruptRecordError
from tests.support.clock import stop
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, body_for, open_small
from tests.unit.derived.test_online_damage import BODY_AT, bodies, flip, open_store

COUNT = 250  # entries: two whole files of 100, and half of one


def written(store: cystore.MessageStore) -> list[bytes]:
    for n in range(COUNT):
        store.put("T", b"%d" % n, tags=f"t{n % 3}")
        store.put("U", b"%d" % n)
    store.dispatch()
    store.flush()
    return [b"%d" % n for n in range(COUNT)]


def harm(path: Path, what: str) -> None:
    folder = path / "consumequeue" / "T" / "0"
    files = sorted(folder.iterdir())
    match what:
        case "first":
            files[0].unlink()
        case "last":
            files[-1].unlink()
        case "all":
            shutil.rmtree(path / "consumequeue" / "T")
        case "zeros":
            with files[1].open("r+b") as file:
                file.write(bytes(2000))
        case "shortened":
            for file in files:
                os.truncate(file, 20 * 30)
        case "lengthened":
            os.truncate(files[0], 5000)
        case "bits":
            with files[0].open("r+b") as file:
                file.seek(20 * 7)
                file.write(b"\x01\x02")
                file.seek(20 * 60 + 7)
                file.write(b"\xff\xff")
        case "behind the log":
            with files[1].open("r+b") as file:
                file.write(((1 << 40).to_bytes(8, "big") + bytes([0, 0, 0, 100]) + bytes(8)) * 100)
        case "another message":
            with files[1].open("r+b") as file:
                file.write(files[0].read_bytes()[:20] * 100)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["first", "last", "all", "zeros", "bits", "shortened", "lengthened"])
def test_a_queue_heals_while_its_store_is_open(tmp_path, caplog, what):
    """Seen: `get` of intact messages raised CorruptRecordError, or gave OFFSET_FOUND_NULL, in every process until a
    rebuild. Where a hand had shortened a file, StoreFormatError."""
    with open_store(tmp_path) as store, Process() as other, Process() as reader:
        expected = written(store)
        harm(tmp_path, what)
        other.do("import cystore; store = cystore.open(path, services=())", path=str(tmp_path))
        reader.do("import cystore; store = cystore.open(path, read_only=True)", path=str(tmp_path))
        read = """
found, offset = [], 0
while (result := store.get('T', 0, offset)).status is cystore.GetStatus.FOUND:
    found += [bytes(m.body).decode() for m in result.messages]
    offset = result.next_offset
found
"""
        for process in (reader, other):  # the first of them may not write, and reads the log itself
            assert process.do(read) == [body.decode() for body in expected]
        assert bodies(store, "T") == expected == bodies(store, "U")
        if what != "lengthened":
            assert other.do("store.stats()['healed_entries']") > 0
        for n in range(COUNT, 2 * COUNT):
            if n % 50:
                store.put("T", b"%d" % n)
            else:
                other.do("store.put('T', str(n).encode()) and store.dispatch() and 0", n=n)
        expected = [b"%d" % n for n in range(2 * COUNT)]
        assert bodies(store, "T") == expected
        for process in (reader, other):
            assert process.do(read) == [body.decode() for body in expected]
        assert [m.queue_offset for m in store.get("T", 0, 0, tags="t1").messages][:3] == [1, 4, 7]
        other.do("store.close()")
    with open_store(tmp_path) as store:
        assert bodies(store, "T") == expected


def test_a_damaged_record_is_not_taken_for_a_damaged_queue(tmp_path):
    """Its entry is right; the message itself is damaged, and says so."""
    with open_store(tmp_path) as store:
        puts = [store.put("T", b"%d" % n) for n in range(10)]
        store.dispatch()
        flip(tmp_path, puts[4].physical_offset + BODY_AT)
        flip(tmp_path, puts[6].physical_offset + 4)
        for offset in (4, 6):
            with pytest.raises(CorruptRecordError) as caught:
                store.get("T", 0, offset)
            assert caught.value.offset == puts[offset].physical_offset
        assert store.stats()["healed_entries"] == 0
        assert [bytes(m.body) for m in store.get("T", 0, 7).messages] == [b"7", b"8", b"9"]


def test_zeros_are_damage_also_where_the_log_was_cleaned(tmp_path, monkeypatch):
    """Seen: `get` took an entry of zeros for one whose record was cleaned, and said MESSAGE_WAS_REMOVING of messages
    that the log had."""
    with open_small(tmp_path, file_reserved_time_h=1) as store:
        for _ in range(3 * LOG_BYTES // 1024):
            store.put("T", body_for(1024))
        store.dispatch()
        stop(monkeypatch, clock.now_ms() + 3 * 3_600_000)
        offsets = [store.put("T", b"%d" % n).queue_offset for n in range(10)]
        store.dispatch()
        assert store.clean().segments > 0
        assert store.stats()["min_physical_offset"] > 0
        with sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[-1].open("r+b") as file:
            file.write(bytes(2000))
        found = [store.get("T", 0, offset, 1) for offset in offsets]
        assert [bytes(got.messages[0].body) for got in found if got.messages] == [
            b"%d" % n for n in range(10)
        ]
        assert store.stats()["healed_entries"] >= 10


@pytest.mark.parametrize(
    "what", ["first", "last", "all", "zeros", "shortened", "behind the log", "another message"]
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_search_by_time_is_right_before_anybody_has_read_the_queue(tmp_path, what, read_only):
    """Seen: it gave the queue's first offset until a `get` had made the entries again. It raised OffsetError about
    the log for an entry that leads behind it, and believed one of another message."""
    with open_store(tmp_path) as store:
        times: list[int] = []
        for n in range(COUNT):
            if n % 30 == 0:
                while times and clock.now_ms() <= times[-1]:
                    pass
            times.append(store.put("T", b"%d" % n).store_timestamp_ms)
        store.dispatch()
        with cystore.open(tmp_path, services=(), read_only=read_only) as other:
            harm(tmp_path, what)
            for offset in (0, 30, 119, 120, COUNT - 1):
                assert other.offset_by_time("T", 0, times[offset]) == times.index(times[offset])
            assert times[other.offset_by_time("T", 0, times[-1] + 10_000)] == times[-1]
        assert bodies(store, "T") == [b"%d" % n for n in range(COUNT)]
