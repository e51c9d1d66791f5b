"""Goal: the manifest keeps what it was told, whatever is torn, damaged, full or killed. Method: bytes changed in its
file, two processes' views on one control block, a file system without room."""

import json
import os

import pytest

from cystore.engine.manifest import manifest_file
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.engine.manifest.manifest import (
    MAJOR,
    Facts,
    Manifest,
    look,
    parse,
    read_damaged_ranges,
    render,
)
from cystore.engine.manifest.manifest_file import FILE_NAME, FIRST_SLOT_BYTES, HEADER_BYTES
from cystore.errors import StoreFormatError, StoreFullError, StoreIOError
from cystore.system import files
from cystore.system.ranges import file_ranges
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about one file

HOLE = DamagedRange(100, 200, "bad checksum", "copy", 5)


def slot_at(path, place, change):
    """Changes the bytes of one slot of the file."""
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[place * half : (place + 1) * half] = change(bytes(data[place * half : (place + 1) * half]))
    path.write_bytes(data)


def test_everything_survives_the_file(tmp_path):
    manifest = Manifest.load(tmp_path, None)
    manifest.add_damage(100, 200, "bad checksum", "copy")
    manifest.give_up("T", 3, 5, 9)
    manifest.update(lambda facts: facts.with_section("later", {"of": ["a newer part"]}))
    again = Manifest.load(tmp_path, None).snapshot()
    assert again == manifest.snapshot()
    assert again.damaged_ranges.ranges() == read_damaged_ranges(tmp_path).ranges() == [(100, 200)]
    assert again.given_up == GivenUp([("T", 3, 5, 9)])
    assert again.sections == {"later": {"of": ["a newer part"]}}
    assert len(again.store_id) == 32


def test_an_update_that_changes_nothing_is_not_written(tmp_path):
    manifest = Manifest.load(tmp_path, None)
    before = manifest.give_up("T", 3, 5, 9), (tmp_path / FILE_NAME).read_bytes()
    manifest.give_up("T", 3, 6, 8)
    assert (tmp_path / FILE_NAME).read_bytes() == before[1]


@pytest.mark.parametrize("torn", ["header", "payload", "zeros"])
def test_a_torn_update_leaves_the_facts_of_before(tmp_path, torn):
    manifest = Manifest.load(tmp_path, None)
    for at in range(1, 5):
        before = manifest.snapshot()
        manifest.give_up("T", 0, at * 10, at * 10 + 5)
        place = look(tmp_path).slot.place
        kept = (tmp_path / FILE_NAME).read_bytes()
        change = {
            "header": lambda slot: bytes(8) + slot[8:],
            "payload": lambda slot: slot[: HEADER_BYTES + 20] + b"?" + slot[HEADER_BYTES + 21 :],
            "zeros": lambda slot: bytes(len(slot)),
        }[torn]
        slot_at(tmp_path / FILE_NAME, place, change)
        assert Manifest.load(tmp_path, None).snapshot() == before
        (tmp_path / FILE_NAME).write_bytes(kept)


def test_any_flipped_bit_of_one_slot_costs_at_most_the_last_update(tmp_path, rng):
    manifest = Manifest.load(tmp_path, None)
    manifest.give_up("T", 0, 1, 2)
    before = manifest.snapshot()
    manifest.give_up("T", 0, 7, 8)
    after, data = manifest.snapshot(), (tmp_path / FILE_NAME).read_bytes()
    for _ in range(200):
        at = rng.randrange(len(data))
        (tmp_path / FILE_NAME).write_bytes(
            data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        )
        assert look(tmp_path).facts in (before, after)


def test_two_damaged_slots_make_a_new_manifest_loudly(tmp_path, caplog):
    Manifest.load(tmp_path, None).give_up("T", 0, 1, 2)
    for place in (0, 1):
        slot_at(tmp_path / FILE_NAME, place, lambda slot: b"x" * len(slot))
    assert "checksum" in look(tmp_path).problem
    facts = Manifest.load(tmp_path, None, lambda: Facts(damaged_ranges=DamagedRanges([HOLE]))).snapshot()
    assert list(facts.damaged_ranges) == [HOLE] and facts.rebuilt
    assert "cannot be read" in caplog.text
    assert Manifest.load(tmp_path, None).snapshot() == facts


def test_an_update_takes_no_new_space_until_half_of_a_slot_is_full(tmp_path, monkeypatch):
    manifest = Manifest.load(tmp_path, None)
    path = tmp_path / FILE_NAME
    inode, blocks = path.stat().st_ino, path.stat().st_blocks
    assert blocks * 512 >= 2 * FIRST_SLOT_BYTES
    for at in range(20):
        manifest.add_damage(at * 10, at * 10 + 5, "bad checksum", "copy")
    assert (path.stat().st_ino, path.stat().st_blocks) == (inode, blocks)

    def full(*_, **__):
        raise StoreFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", full)
        manifest.update(lambda facts: facts.with_section("a", "x" * (FIRST_SLOT_BYTES // 2)))
        before = manifest.snapshot()
        with pytest.raises(StoreFullError):
            manifest.update(lambda facts: facts.with_section("b", "x" * FIRST_SLOT_BYTES))
    assert Manifest.load(tmp_path, None).snapshot() == before
    manifest.update(lambda facts: facts.with_section("b", "x" * FIRST_SLOT_BYTES))
    assert path.stat().st_size > 2 * FIRST_SLOT_BYTES
    assert Manifest.load(tmp_path, None).snapshot() == manifest.snapshot()


def test_a_failed_sync_does_not_cost_the_slot_that_is_durable(tmp_path, monkeypatch):
    manifest = Manifest.load(tmp_path, None)
    manifest.give_up("T", 0, 1, 2)
    before, place = manifest.snapshot(), look(tmp_path).slot.place
    real = file_ranges.write_at

    def failing(path, pieces):
        real(path, pieces)
        if len(pieces[0][1]) > HEADER_BYTES:
            raise StoreIOError("Input/output error", path=path)

    monkeypatch.setattr(file_ranges, "write_at", failing)
    with pytest.raises(StoreIOError):
        manifest.give_up("T", 0, 7, 8)
    found = look(tmp_path)
    assert (found.facts, found.slot.place) == (before, place) and manifest.snapshot() == before


@pytest.mark.parametrize(
    "change",
    [
        {"damaged": [{"begin": 5, "end": 1 << 70, "reason": "", "copy": "", "found_ms": 0}]},
        {"damaged": [{"begin": 5, "end": 3, "reason": "", "copy": "", "found_ms": 0}]},
        {"given_up": [["T", 0, 9, 3]]},
        {"given_up": [["T", True, 0, 3]]},
        {"given_up": [["T", 0, 5, 5]]},
        {"given_up": [["T", 0, -1, 5]]},
        {"given_up": [["T", 0, 5]]},
        {"given_up": None},
        {"settings": []},
        {"format": {"major": "1"}},
    ],
)
def test_a_crafted_payload_is_refused(tmp_path, change):
    content = json.loads(render(Facts())) | change
    with pytest.raises(ValueError):
        parse(json.dumps(content).encode())
    manifest_file.create(tmp_path, 1, json.dumps(content).encode())
    assert look(tmp_path).problem


def test_fields_of_a_newer_minor_version_are_kept(tmp_path):
    content = json.loads(render(Facts())) | {"format": {"major": 1, "minor": 9}, "replicas": {"epoch": 4}}
    manifest_file.create(tmp_path, 1, json.dumps(content).encode())
    Manifest.load(tmp_path, None).give_up("T", 0, 1, 2)
    again = json.loads(look(tmp_path).slot.payload)
    assert again["format"] == {"major": 1, "minor": 9} and again["replicas"] == {"epoch": 4}


def test_a_newer_major_version_is_refused(tmp_path):
    content = json.loads(render(Facts())) | {"format": {"major": MAJOR + 1, "minor": 0}}
    manifest_file.create(tmp_path, 1, json.dumps(content).encode())
    with pytest.raises(StoreFormatError, match="newer version"):
        Manifest.load(tmp_path, None)


def test_a_hole_that_another_process_enters_is_seen_without_reopening(tmp_path):
    with open_small(tmp_path / "store") as one, open_small(tmp_path / "store") as other:
        assert other.stats()["holes"] == []
        one._attached().manifest.add_damage(100, 200, "bad checksum")
        assert other.stats()["holes"] == [(100, 200)]
        assert other._attached().commit_log.damaged_ranges.covering(150) == (100, 200)
        other._attached().manifest.add_damage(200, 300, "more")
        assert one.stats()["holes"] == [(100, 300)]


def test_a_manifest_that_is_taken_away_under_live_processes_comes_back(tmp_path, caplog):
    with open_small(tmp_path / "store") as one, open_small(tmp_path / "store") as other:
        one._attached().manifest.give_up("T", 0, 1, 2)
        os.unlink(tmp_path / "store" / FILE_NAME)
        assert other._attached().manifest.snapshot().given_up == GivenUp()
        assert "the next update writes it again" in caplog.text
        one._attached().manifest.give_up("T", 0, 5, 6)
        assert other._attached().manifest.snapshot().given_up == GivenUp([("T", 0, 1, 2), ("T", 0, 5, 6)])
