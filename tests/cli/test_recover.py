"""Goal: `cystore recover` says what it will do and does just that; `--dry-run` touches nothing. Method: crashed and
damaged stores, the plan beside what the library finds afterwards."""

from __future__ import annotations

import shutil

import pytest

import cystore
from tests.support.cli import stores
from tests.support.cli.command import golden_settings, settings

SETTINGS = settings(stores.SMALL)


def numbers(path):
    with cystore.open(path, read_only=True) as store:
        return sorted(int(message.properties["number"]) for message in store.scan())


def test_a_crashed_store(command, store_path):
    stores.write(store_path, 10)
    stores.write_and_crash(store_path, 30, start=10)
    before = stores.snapshot(store_path)
    (plan,) = command.json_lines("recover", store_path, "--dry-run", *SETTINGS)
    assert stores.snapshot(store_path) == before
    assert (plan["dry_run"], plan["put_aside"], plan["damage"], plan["lost"]) == (True, None, [], None)
    (done,) = command.json_lines("recover", store_path, *SETTINGS)
    assert done == {**plan, "dry_run": False, "put_aside": []}
    assert not (store_path / "abort").exists()
    assert numbers(store_path) == list(range(40))
    (again,) = command.json_lines("recover", store_path, "--dry-run", *SETTINGS)
    assert again["actions"] == []


def test_a_torn_tail_is_cut_and_kept(command, store_path):
    stores.write(store_path, 10)
    stores.write_and_crash(store_path, 10, start=10)
    with cystore.open(store_path, read_only=True) as store:
        last = max(store.scan(), key=lambda m: m.physical_offset)
        place, end = last.physical_offset, last.physical_offset + last.size_bytes
    # Power was lost before the last record and the watermark behind it were on the disk.
    with open(store_path / "checkpoint", "r+b") as file:
        file.write(bytes(4096))
    stores.damage(store_path, end - 1)
    (plan,) = command.json_lines("recover", store_path, "--dry-run", *SETTINGS)
    assert plan["end"] == place
    assert any("quarantine" in action for action in plan["actions"])
    text = command.ok("recover", store_path, *SETTINGS)
    for action in plan["actions"]:
        assert action in text
    assert text.splitlines()[-1].startswith("done: ")
    assert list((store_path / "quarantine").iterdir())
    assert numbers(store_path) == list(range(19))


def test_damage_in_durable_records(command, store_path):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 100)
    (store_path / "abort").touch()
    for arguments in (["--dry-run"], []):
        done = command.run("recover", store_path, *arguments, *SETTINGS)
        assert done.returncode == 1
        assert f"damaged: {puts[10].physical_offset}..{puts[11].physical_offset}" in done.stdout
    assert numbers(store_path) == [n for n in range(40) if n != 10]
    assert "nothing to mend" in command.ok("recover", store_path, *SETTINGS)


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_store_in_use_is_left_alone(command, store_path, exclusive):
    with cystore.open(store_path, exclusive=exclusive, **stores.SMALL) as store:
        store.put("t", b"")
        for arguments in ([], ["--dry-run"]):
            done = command.run("recover", store_path, *arguments, *SETTINGS)
            assert (done.returncode, done.stdout) == (2, "")
            assert "the store is in use" in done.stderr


def test_a_closed_store_has_nothing_to_mend(command, store_path):
    stores.write(store_path, 10)
    text = command.ok("recover", store_path, "--dry-run", *SETTINGS)
    assert text.splitlines()[-1] == "nothing to mend"
    assert "10 records" in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    ["a_clean", "b2_crash_zero_checkpoint", "f1_torn_tail_zeroed", "f3_torn_middle", "j_expired_preblank"],
)
def test_golden_stores_read_the_same_afterwards(command, unpack_golden, name):
    golden = unpack_golden(name)
    arguments = golden_settings(golden)
    dump = command.run("dump", golden.store, "--json", *arguments).stdout
    before = stores.snapshot(golden.store)
    dry = command.run("recover", golden.store, "--dry-run", *arguments)
    assert stores.snapshot(golden.store) == before
    done = command.run("recover", golden.store, *arguments)
    assert (done.returncode, done.stdout.splitlines()[:-1]) == (dry.returncode, dry.stdout.splitlines())
    assert command.ok("dump", golden.store, "--json", *arguments) == dump
    shutil.rmtree(golden.store)
