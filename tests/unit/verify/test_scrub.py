"""Goal: a scrub looks at every byte that counts, finds what is wrong, and continues where it was. Method: small
stores whose bytes are turned by hand while they are open."""

from __future__ import annotations

import logging
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

import cystore
from cystore._native.derived import queue_ext
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.layout import QUEUE_ENTRY
from cystore.services import scrub, scrub_progress
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

COUNT = 600  # several segments, several files of each queue
SLICE = 5_000


@pytest.fixture(autouse=True)
def _heard(caplog):
    """Captures the library's log, whatever another test's module did to its loggers."""
    caplog.set_level(logging.WARNING, "cystore")


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "store") as store:
        for number in range(COUNT):
            store.put(f"T{number % 3}", b"x" * 60, keys=(f"k{number}",), tags="abc")
        store.dispatch()
        yield store


def round_of(store: cystore.MessageStore, slice_bytes: int = SLICE) -> list[scrub.Scrubbed]:
    found = [store.scrub(slice_bytes)]
    while found[-1].more:
        assert found[-1].end > found[-1].begin, "it stands still"
        found.append(store.scrub(slice_bytes))
        assert found[-1].begin >= found[-2].end, "it went back"
    return found


def damage(found: list[scrub.Scrubbed]) -> list:
    return [each for piece in found for each in piece.damage]


def positions(store: cystore.MessageStore) -> list[int]:
    return [message.physical_offset for message in store.scan()]


def turn_record(store: cystore.MessageStore, position: int) -> None:
    segment = store._attached().commit_log.segment_for(position)
    segment.write(position - segment.base + 100, b"\xff")


def test_a_round_sees_each_record_once(store):
    found = round_of(store)
    assert not damage(found)
    assert sum(each.records for each in found) == COUNT
    assert found[0].begin == 0 and found[-1].end == store.stats()["dispatched"]
    assert all(before.end == after.begin for before, after in pairwise(found))
    assert len(found) > store.wrote_position // LOG_BYTES
    assert max(each.end - each.begin for each in found) < SLICE + LOG_BYTES
    assert scrub_progress.read_progress(store.path).rounds == 1


def test_it_goes_on_after_a_restart_and_after_a_kill(store):
    first = store.scrub(SLICE)
    with Process() as other:
        other.do(
            "import cystore\nstore = cystore.open(path, **settings)\nstore.scrub(size)",
            path=str(store.path), settings=SETTINGS, size=SLICE,
        )  # fmt: skip
        other.kill()
    second_end = scrub_progress.read_progress(store.path).position
    assert second_end > first.end
    store.close()
    with open_small(store.path) as again:
        assert again.scrub(SLICE).begin == second_end


@pytest.mark.parametrize("slice_bytes", [SLICE, 1 << 30])
def test_a_flipped_bit_of_a_record_is_found_told_and_kept(store, caplog, slice_bytes):
    position = positions(store)[COUNT // 2]
    turn_record(store, position)
    with caplog.at_level(logging.ERROR, "cystore"):
        (found,) = damage(round_of(store, slice_bytes))
    assert (found.kind, found.begin) == ("record", position)
    assert "bad checksum" in caplog.text and str(position) in caplog.text
    kept = scrub_progress.read_progress(store.path)
    assert (kept.damaged, kept.records) == (1, COUNT - 1)
    assert kept.findings[0]["begin"] == position and kept.findings[0]["found_ms"] > 0
    assert damage(round_of(store)) == [found]
    assert len(scrub_progress.read_progress(store.path).findings) == 2


def test_a_wrong_queue_entry_is_written_again_from_the_log(store, caplog):
    queue = store._attached().queues.find("T1", 0)
    for number in (3, 150):
        file = queue.file_of(number)
        file.write(
            number * ENTRY_BYTES - file.base, bytes(ENTRY_BYTES) if number == 3 else b"\x01" * ENTRY_BYTES
        )
    found = round_of(store)
    assert not damage(found)
    assert sum(each.mended for each in found) == 2
    assert "queue offset 150 disagreed" in caplog.text
    for number in (3, 150):
        (message,) = store.get("T1", 0, number, 1, tags="abc").messages
        assert message.keys == (f"k{3 * number + 1}",)
    assert not sum(each.mended for each in round_of(store))


def test_a_slice_whose_entries_cannot_be_mended_now_is_done_again(store):
    queue = store._attached().queues.find("T1", 0)
    file = queue.file_of(3)
    file.write(3 * ENTRY_BYTES, bytes(ENTRY_BYTES))
    with Process() as other:
        other.do(
            "import cystore\nstore = cystore.open(path, **settings)\nturn = "
            "store._attached().control.held('dispatch'); turn.__enter__()",
            path=str(store.path), settings=SETTINGS,
        )  # fmt: skip
        with pytest.raises(cystore.StoreTimeoutError, match="not mended yet"):
            store.scrub(SLICE)
        assert scrub_progress.read_progress(store.path).position == 0
        other.kill()
    assert store.scrub(SLICE).mended == 1


def test_entries_that_cannot_be_mended_are_told_with_the_command_that_helps(store, caplog, monkeypatch):
    monkeypatch.setattr(scrub, "MENDED_AT_ONCE", 1)
    queue = store._attached().queues.find("T1", 0)
    file = queue.file_of(10)
    file.write(10 * ENTRY_BYTES - file.base, bytes(2 * ENTRY_BYTES))
    found = damage(round_of(store, 1 << 30))
    assert [(each.kind, each.begin) for each in found] == [("consume_queue", 200), ("consume_queue", 220)]
    assert "cystore rebuild" in caplog.text


def test_a_wrong_index_entry_is_told(store):
    newest = store._attached().index.newest()
    newest.file.write(40 + 4 * newest.slots + ENTRY_BYTES * 300, b"\x11\x22\x33\x44")
    (found,) = damage(round_of(store))
    assert found.kind == "index"
    assert found.begin == positions(store)[299]


def test_a_new_round_waits_for_its_time(store):
    round_of(store)
    assert store.scrub(SLICE, pause_ms=60_000).records == 0
    assert store.scrub(SLICE).records > 0


def test_what_was_cleaned_meanwhile_is_no_damage(tmp_path):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        for _ in range(COUNT):
            store.put("T", b"x" * 60)
        store.dispatch()
        store.flush()
        store.scrub(SLICE)
        assert store.clean().segments > 2
        minimum = store.stats()["min_physical_offset"]
        found = round_of(store)
        assert found[0].begin == minimum and not damage(found)


@pytest.mark.parametrize("moment", ["before it is listed", "while it is read"])
def test_what_is_cleaned_while_it_is_scrubbed_is_no_damage(tmp_path, monkeypatch, moment):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        for _ in range(COUNT):
            store.put("T", b"x" * 60)
        store.dispatch()
        store.flush()
        run, reader = scrub.Comparison.run, scrub.LogReader
        if moment == "while it is read":
            monkeypatch.setattr(scrub.Comparison, "run", lambda check: (store.clean(), run(check))[1])
        else:
            monkeypatch.setattr(scrub, "LogReader", lambda *args: (store.clean(), reader(*args))[1])
        found = store.scrub(SLICE)
        monkeypatch.undo()
        assert store.stats()["min_physical_offset"] > SLICE
        assert not found.damage and found.end == store.stats()["min_physical_offset"]
        assert not damage(round_of(store))


def test_an_empty_store_and_one_that_is_behind(tmp_path):
    with open_small(tmp_path / "s") as store:
        assert not store.scrub().more
        store.put("T", b"x")
        assert store.scrub().records == 0, "not dispatched yet"
        store.dispatch()
        assert store.scrub().records == 1


@pytest.mark.parametrize(
    "content", [[], "x", {}, {"position": -1, "findings": []}, {"position": 1, "findings": 7}]
)
def test_progress_that_is_none_begins_anew(store, caplog, content):
    store.scrub(SLICE)
    store._attached().manifest.set_section(scrub_progress.SECTION, content)
    assert store.scrub(SLICE).begin == 0
    assert "begins anew" in caplog.text


def test_progress_of_another_log_begins_anew(store):
    progress = scrub_progress.progress_fields(scrub_progress.ScrubProgress(position=1 << 40, began_ms=1))
    store._attached().manifest.set_section(scrub_progress.SECTION, progress)
    assert store.scrub(SLICE).begin == 0


EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext_bytes": 1024}


@pytest.fixture
def extended(tmp_path):
    """A store with extended queues; each entry holds the address of its unit."""
    with open_small(tmp_path / "extended", **EXT) as store:
        for number in range(200):
            store.put(f"T{number % 2}", b"x" * 60, tags="abc")
        store.dispatch()
        assert not damage(round_of(store)) and not sum(each.mended for each in round_of(store))
        yield store


def unit_file(queue, number):
    """(file, position in it) of the unit of a queue offset."""
    position = queue_ext.position_of(queue.entry(number).tags_code)
    return (file := queue.ext.files.get(queue.ext.files.base_of(position))), position - file.base


@pytest.mark.parametrize("at", [5, 13])  # a byte of the tags code, of the store timestamp
def test_a_unit_of_another_record_is_written_again(extended, at):
    queue = extended._attached().queues.find("T1", 0)
    before = queue.ext.get(queue.entry(60).tags_code)
    file, place = unit_file(queue, 60)
    file.write(place + at, b"\x55")
    assert queue.ext.get(queue.entry(60).tags_code) != before
    found = round_of(extended)
    assert (damage(found), sum(each.mended for each in found)) == ([], 1)
    assert queue.ext.get(queue.entry(60).tags_code) == before
    assert not sum(each.mended for each in round_of(extended))


def test_the_bitmap_of_a_mended_unit_hides_no_message(extended):
    """Units with bitmaps are RocketMQ's; every bit of a mended one is set."""
    queue = extended._attached().queues.find("T0", 0)
    last = queue.max_offset - 1
    file, place = unit_file(queue, last)
    unit = bytearray(32)
    assert queue_ext.put(unit, 0, 1, 2, b"\x00" * 8) == ("ok", 28)
    file.write(place, bytes(unit[:28]))
    assert sum(each.mended for each in round_of(extended)) == 1
    mended = queue.ext.get(queue.entry(last).tags_code)
    assert (mended.size_bytes, mended.bitmap) == (28, b"\xff" * 8)
    assert mended.tags_code == queue.ext.get(queue.entry(last - 1).tags_code).tags_code


def test_an_address_that_leads_to_the_unit_of_another_entry_spoils_neither(extended):
    extended.put("T0", b"x" * 60, tags="other")
    extended.dispatch()
    queue = extended._attached().queues.find("T0", 0)
    last = queue.max_offset - 1
    wrong, entry = queue.entry(last - 30), queue.entry(last)
    code = queue.ext.get(entry.tags_code).tags_code
    file = queue.file_of(last)
    packed = QUEUE_ENTRY.pack(entry.physical_offset, entry.size_bytes, wrong.tags_code)
    file.write(last * ENTRY_BYTES - file.base, packed)
    assert [sum(each.mended for each in round_of(extended)) for _ in range(2)] == [1, 0]
    assert queue.entry(last).tags_code == code
    assert [len(extended.get("T0", 0, n, 1, tags="abc").messages) for n in (last - 30, last)] == [1, 0]


@pytest.mark.parametrize("gone", ["unit", "file", "folder"])
def test_an_entry_without_its_unit_gets_the_tags_code_itself(extended, gone):
    queue = extended._attached().queues.find("T0", 0)
    address = queue.entry(70).tags_code
    code = queue.ext.get(address).tags_code
    file, place = unit_file(queue, 70)
    if gone == "unit":
        file.write(place, bytes(20))
    elif gone == "file":
        Path(file.path).unlink()
    else:
        shutil.rmtree(extended.path / "consumequeue_ext" / "T0")
    queue.ext.files.close()
    found = round_of(extended)
    lost = {"unit": 1, "file": 100 - 1020 // 20, "folder": 100}[gone]
    assert (damage(found), sum(each.mended for each in found)) == ([], lost)
    assert queue.entry(70).tags_code == code
    assert len(extended.get("T0", 0, 70, 1, tags="abc").messages) == 1
    extended.put("T0", b"next", tags="abc")
    extended.dispatch()
    round_of(extended)  # this process may have written the new unit into the file that is gone
    assert not sum(each.mended for each in round_of(extended))


def test_a_wrong_entry_of_an_extended_queue_is_written_again(extended):
    queue = extended._attached().queues.find("T1", 0)
    file = queue.file_of(42)
    file.write(42 * ENTRY_BYTES - file.base, b"\x01" * ENTRY_BYTES)
    found = round_of(extended)
    assert (damage(found), sum(each.mended for each in found)) == ([], 1)
    assert len(extended.get("T1", 0, 42, 1, tags="abc").messages) == 1


def test_a_unit_that_hides_a_message_from_a_group_is_mended(tmp_path):
    """Its lengths, tags code and time are right; only a bit of the group is gone."""
    with open_small(tmp_path / "marked", **EXT) as store:
        store.filters.add("g", "T", "a = '1'")
        store.filters.add("h", "T", "a = '2'")
        for number in range(40):
            store.put("T", b"x" * 60, properties={"a": str(number % 4)})
        store.dispatch()
        assert not damage(round_of(store)) and not sum(each.mended for each in round_of(store))
        queue = store._attached().queues.find("T", 0)
        for number in (9, 11):  # one matches the filter of g; the other matches none
            file, place = unit_file(queue, number)
            file.write(place + 20, bytes(14))
        wanted = [number for number in range(40) if number % 4 == 1]
        seen = [one.queue_offset for one in store.get("T", 0, 0, 40, filter="a = '1'", group="g").messages]
        assert seen == [number for number in wanted if number != 9]
        found = round_of(store)
        assert (damage(found), sum(each.mended for each in found)) == ([], 1)
        assert queue.ext.get(queue.entry(9).tags_code).bitmap == b"\xff" * 14
        seen = [one.queue_offset for one in store.get("T", 0, 0, 40, filter="a = '1'", group="g").messages]
        assert seen == wanted
        assert not sum(each.mended for each in round_of(store))
