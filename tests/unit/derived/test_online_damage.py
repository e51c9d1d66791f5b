"""Goal: damage that nobody has met yet stops nothing: dispatch steps over it while processes are attached, keeps it
for repair and says so. Method: bytes of a live store's log are changed under it, through the page cache that all
processes share."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import cystore
from cystore.errors import CorruptRecordError
from cystore.layout import DISK_STRUCTS
from cystore.results import GetStatus
from tests.support.process import Process

FILE_BYTES = 64 * 1024
BODY_AT = 88  # in a record with IPv4 hosts
AT = {field.name: field.at for disk in DISK_STRUCTS if disk.name == "record" for field in disk.fields}


def open_store(path: Path, **settings) -> cystore.MessageStore:
    return cystore.open(
        path,
        mapped_file_size_commit_log_bytes=FILE_BYTES,
        mapped_file_size_consume_queue_bytes=2000,
        max_hash_slot_num=16,
        max_index_num=4000,
        services=(),
        **settings,
    )


def change(path: Path, place: int, data: bytes) -> None:
    """Writes bytes into the log at a physical offset."""
    base = place - place % FILE_BYTES
    with (path / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(place - base)
        file.write(data)


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flips one bit of the log."""
    base = place - place % FILE_BYTES
    with (path / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(place - base)
        byte = file.read(1)[0]
        file.seek(place - base)
        file.write(bytes([byte ^ (1 << bit)]))


def bodies(store: cystore.MessageStore, topic: str, offset: int = 0) -> list[bytes]:
    found = []
    while True:
        result = store.get(topic, 0, offset, 32)
        if result.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_TOO_SMALL):
            return found
        found += [bytes(message.body) for message in result.messages]
        offset = result.next_offset


# ------------------------------------------------------------------------------- a bit of the queue offset


@pytest.mark.parametrize("bit", range(4))
def test_a_flipped_queue_offset_makes_no_holes_of_intact_records(tmp_path, bit):
    """Seen: dispatch believed the offset of a damaged record, wrote hole entries up to it and skipped the intact
    records behind."""
    with open_store(tmp_path) as store:
        puts = [store.put("T", b"%d" % n, keys=f"k{n}") for n in range(40)]
        flip(tmp_path, puts[10].physical_offset + AT["queue_offset"] + 7, bit)
        intact = [b"%d" % n for n in range(40) if n != 10]
        assert bodies(store, "T") == intact
        assert [bytes(m.body) for m in store.query("T", "k11")] == [b"11"]
        assert store.query("T", "k10") == []


@pytest.mark.parametrize("field", ["queue_id", "flag", "sys_flag", "born_timestamp"])
def test_a_record_with_any_flipped_bit_is_not_dispatched(tmp_path, field):
    """Seen: a record with another queue id got an entry in that queue, and the true record of that entry got none."""
    with open_store(tmp_path) as store:
        first = [store.put("T", b"%d" % n) for n in range(10)]
        others = [store.put("T", b"other %d" % n, queue_id=1) for n in range(10)]
        flip(tmp_path, first[5].physical_offset + AT[field] + 3, 0)
        assert bodies(store, "T") == [b"%d" % n for n in range(10) if n != 5]
        assert len(store.get("T", 1, 0).messages) == len(others)


# ---------------------------------------------------------------------------------- a record that is not valid


@pytest.mark.parametrize("what", ["body", "size", "magic", "zeros"])
def test_a_damaged_record_is_stepped_over(tmp_path, caplog, what):
    """Seen: one damaged record that was not dispatched stopped the dispatch of all topics, and `query` silently found
    nothing."""
    with open_store(tmp_path) as store:
        store.put("A", b"a0", keys="key")
        bad = store.put("B", b"the body", keys="key")
        last = store.put("B", b"b1", keys="key")
        store.put("A", b"a1", keys="key")
        at = bad.physical_offset
        match what:
            case "body":
                flip(tmp_path, at + BODY_AT)
            case "size":
                change(tmp_path, at, (1 << 30).to_bytes(4, "big"))
            case "magic":
                change(tmp_path, at + 4, b"\0\0\0\0")
            case "zeros":
                change(tmp_path, at, bytes(bad.size_bytes))
        with caplog.at_level(logging.ERROR, "cystore"):
            assert bodies(store, "A") == [b"a0", b"a1"]
        assert [bytes(m.body) for m in store.query("A", "key")] == [b"a1", b"a0"]
        assert [bytes(m.body) for m in store.query("B", "key")] == [b"b1"]
        assert bodies(store, "B") == [b"b1"]
        assert store.stats()["holes"] == [(at, last.physical_offset)]
        assert store.stats()["dispatch_behind_bytes"] == 0
        assert [bytes(m.body) for m in store.scan()] == [b"a0", b"b1", b"a1"]
        assert "damaged" in caplog.text and str(at) in caplog.text
        copies = [path for path in (tmp_path / "quarantine").iterdir() if path.name.startswith("commitlog-")]
        assert [path.stat().st_size for path in copies] == [bad.size_bytes]
        with pytest.raises(CorruptRecordError, match="damaged range"):
            store.read(at)
    with open_store(tmp_path) as store:
        assert bodies(store, "A") == [b"a0", b"a1"] and bodies(store, "B") == [b"b1"]
        assert store.stats()["holes"] == [(at, last.physical_offset)]
        assert store.put("B", b"b2").queue_offset == 2


def test_damage_at_the_end_of_the_log_is_stepped_over_and_its_queue_offset_is_not_given_out_again(tmp_path):
    """Seen: dispatch stopped before the newest record when that one was damaged, and so did everything put behind
    it."""
    with open_store(tmp_path) as store:
        store.put("T", b"0")
        bad = store.put("T", b"1")
        flip(tmp_path, bad.physical_offset + BODY_AT)
        assert bodies(store, "T") == [b"0"]
        assert store.stats()["dispatch_behind_bytes"] == 0
        assert store.put("T", b"2").queue_offset == 2
        assert bodies(store, "T") == [b"0", b"2"]


def test_an_offset_that_damage_swallowed_is_not_given_out_after_a_clean_close(tmp_path):
    """I2: the offset of the last record of a queue was acknowledged, whatever became of the record."""
    with open_store(tmp_path) as store:
        store.put("T", b"0")
        bad = store.put("T", b"1")
        store.put("U", b"0")
        flip(tmp_path, bad.physical_offset + BODY_AT)
    with open_store(tmp_path) as store:
        assert store.put("T", b"2").queue_offset == 2
        assert bodies(store, "T") == [b"0", b"2"]


def test_damage_over_several_segments_is_one_hole(tmp_path):
    """A whole segment of rubbish, the blank before it too, is searched for the next valid record in several turns."""
    with open_store(tmp_path) as store:
        puts = [store.put("T", b"x" * 1000) for _ in range(200)]
        begin = next(put for put in puts if put.physical_offset > FILE_BYTES // 2).physical_offset
        behind = next(put for put in puts if put.physical_offset >= 2 * FILE_BYTES)
        change(tmp_path, begin, b"\x43" * (FILE_BYTES - begin))
        change(tmp_path, FILE_BYTES, b"\x43" * FILE_BYTES)
        kept = [n for n, put in enumerate(puts) if not begin <= put.physical_offset < behind.physical_offset]
        store.dispatch()
        assert store.stats()["holes"] == [(begin, behind.physical_offset)]
        found, offset = [], 0
        while (result := store.get("T", 0, offset)).next_offset > offset:
            found += [message.queue_offset for message in result.messages]
            offset = result.next_offset
        assert found == kept


def test_all_attached_processes_see_a_hole_that_one_of_them_found(tmp_path):
    """The others hold the list of holes as it was when they attached; a scan that meets the damage looks again."""
    with open_store(tmp_path) as store, Process() as other:
        other.do(
            "import cystore; store = cystore.open(path, read_only=True); store.stats()['holes']",
            path=str(tmp_path),
        )
        puts = [store.put("T", b"%d" % n) for n in range(5)]
        flip(tmp_path, puts[2].physical_offset + BODY_AT)
        store.dispatch()
        assert other.do("[bytes(m.body).decode() for m in store.scan()]") == ["0", "1", "3", "4"]
        assert other.do("store.stats()['holes']") == [[puts[2].physical_offset, puts[3].physical_offset]]
        other.do("store.close()")
