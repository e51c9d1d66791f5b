"""Goal: `cystore verify` finds what is wrong and nothing else. Method: sound stores in every state, and one byte
changed in a record, a consume queue, an index file."""

from __future__ import annotations

import json

import pytest

import cystore
from tests.support.cli import stores
from tests.support.cli.command import golden_settings, settings
from tests.support.golden.stores import NAMES

SETTINGS = settings(stores.SMALL)


def found(command, path, *arguments):
    done = command.run("verify", path, "--json", *SETTINGS, *arguments)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if rows else 0), done.stderr
    assert done.stderr == ""
    return rows


def test_a_sound_store(command, store_path):
    stores.write(store_path, 1000)
    before = stores.snapshot(store_path)
    assert found(command, store_path) == []
    assert command.ok("verify", store_path, *SETTINGS) == "no damage\n"
    assert stores.snapshot(store_path) == before


def test_a_sound_store_whose_index_has_another_shape_than_the_settings(command, store_path):
    """Without --set: the files tell their shape."""
    stores.write(store_path, 100, max_index_num=150)
    assert command.run("verify", store_path).stdout == "no damage\n"


def test_a_wrong_entry_of_an_index_of_another_shape(command, store_path):
    stores.write(store_path, 100)
    (path, *_) = sorted((store_path / "index").iterdir())
    slots = stores.SMALL["max_hash_slot_num"]
    with path.open("r+b") as file:
        file.seek(40 + 4 * slots + 20 * 7)
        file.write(bytes([1, 2, 3, 4]))
    done = command.run("verify", store_path)
    assert done.returncode == 1
    assert str(path) in done.stdout
    assert "were not compared" not in done.stdout


def test_a_store_in_use(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        puts = store.put_many(stores.messages(300))
        store.dispatch()
        store.put_many(stores.messages(300, 300))  # not dispatched
        assert found(command, store_path) == []
        stores.damage(store_path, puts[10].physical_offset + 100)
        (record,) = [row for row in found(command, store_path) if row["kind"] == "record"]
        assert (record["begin"], record["end"]) == (puts[10].physical_offset, puts[11].physical_offset)


def test_a_crashed_store(command, store_path):
    stores.write(store_path, 100)
    stores.write_and_crash(store_path, 100, start=100)
    before = stores.snapshot(store_path)
    assert found(command, store_path) == []
    assert stores.snapshot(store_path) == before


def test_a_record(command, store_path):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 100)
    rows = found(command, store_path)
    (record,) = [row for row in rows if row["kind"] == "record"]
    assert record["path"] == str(store_path / "commitlog" / ("0" * 20))
    assert (record["begin"], record["end"]) == (puts[10].physical_offset, puts[11].physical_offset)
    lines = command.run("verify", store_path, *SETTINGS).stdout.splitlines()
    assert lines[-1] == f"{len(rows)} damaged ranges"
    assert f"record {record['path']} {record['begin']}..{record['end']}: {record['reason']}" in lines


def test_a_hole_is_still_reported(command, store_path):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 100)
    assert command.run("recover", store_path, *SETTINGS).returncode == 1
    rows = [row for row in found(command, store_path) if row["kind"] == "record"]
    assert [(row["begin"], row["end"]) for row in rows] == [
        (puts[10].physical_offset, puts[11].physical_offset)
    ]


def test_an_entry_of_a_consume_queue(command, store_path):
    stores.write(store_path, 100)
    path = store_path / "consumequeue" / "beta" / "1" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[20 * 7 + 7] ^= 1
    path.write_bytes(data)
    (row,) = found(command, store_path)
    assert (row["kind"], row["path"], row["begin"], row["end"]) == ("consume_queue", str(path), 140, 160)


def test_an_entry_of_the_index(command, store_path):
    stores.write(store_path, 100)
    (path,) = (store_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    at = 40 + 4 * stores.SMALL["max_hash_slot_num"] + 20 * 50
    data[at] ^= 1
    path.write_bytes(data)
    rows = found(command, store_path)
    assert rows
    assert {(row["kind"], row["path"]) for row in rows} == {("index", str(path))}


def test_a_store_that_one_process_has_for_itself(command, store_path):
    with cystore.open(store_path, exclusive=True, **stores.SMALL):
        done = command.run("verify", store_path, *SETTINGS)
    assert done.returncode == 2
    assert "one process has the store exclusively" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(command, unpack_golden, name):
    golden = unpack_golden(name)
    before = stores.snapshot(golden.store)
    done = command.run("verify", golden.store, "--json", *golden_settings(golden))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = {row["kind"] for row in rows}
    assert done.returncode == (1 if rows else 0)
    assert ("record" in kinds) is (name in ("f1_torn_tail_zeroed", "f3_torn_middle"))
    assert stores.snapshot(golden.store) == before
