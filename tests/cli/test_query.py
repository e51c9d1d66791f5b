"""Goal: `cystore query` finds messages by key as the library does. Method: the command beside the library on the same
store."""

from __future__ import annotations

import cystore
from tests.support.cli import stores
from tests.support.cli.command import golden_settings, settings


def numbers(rows):
    return [int(row["properties"]["number"]) for row in rows]


def test_newest_first_and_at_most_so_many(command, store_path):
    stores.write(store_path, 200)
    wanted = [n for n in range(199, -1, -1) if n % 10 == 4]
    assert numbers(command.json_lines("query", store_path, "alpha", "group-4")) == wanted
    assert numbers(command.json_lines("query", store_path, "alpha", "group-4", "--max", 3)) == wanted[:3]
    assert numbers(command.json_lines("query", store_path, "alpha", "key-8")) == [8]


def test_time_range(command, store_path):
    stores.write(store_path, 20)
    with cystore.open(store_path, read_only=True) as store:
        at = store.query("alpha", "key-8")[0].store_timestamp_ms
    found = command.json_lines("query", store_path, "alpha", "key-8", "--begin-ms", at, "--end-ms", at)
    assert numbers(found) == [8]
    assert command.run("query", store_path, "alpha", "key-8", "--end-ms", at - 1).returncode == 1
    assert command.run("query", store_path, "alpha", "key-8", "--begin-ms", at + 1).returncode == 1


def test_nothing_found(command, store_path):
    stores.write(store_path, 20)
    done = command.run("query", store_path, "beta", "key-8", "--json", *settings(stores.SMALL))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cystore: no message of topic beta has the key key-8\n"
    done = command.run("query", store_path, "beat", "key-8")
    assert done.returncode == 1
    assert done.stderr.endswith("has the key key-8: there is no such topic; did you mean beta?\n")


def test_lines_for_people(command, store_path):
    stores.write(store_path, 20)
    (line,) = command.ok("query", store_path, "alpha", "key-8").splitlines()
    assert line.startswith("alpha/0@2  ")
    assert "keys key-8,group-8  body 8 body 8" in line


def test_a_crashed_store_with_nothing_dispatched_is_left_alone(command, store_path):
    stores.write(store_path, 10)
    stores.write_and_crash(store_path, 10, start=10)
    before = stores.snapshot(store_path)
    assert numbers(command.json_lines("query", store_path, "alpha", "key-18")) == [18]
    assert stores.snapshot(store_path) == before


def test_keys_of_a_golden_store(command, unpack_golden):
    golden = unpack_golden("h_multi_index")
    rows = [row for row in golden.rows_of("query") if 0 < len(set(row["physicalOffsets"])) < 64][:3]
    assert rows
    for row in rows:
        found = command.json_lines(
            "query", golden.store, row["topic"], row["key"], "--max", 64, *golden_settings(golden)
        )
        assert {m["physical_offset"] for m in found} <= set(row["physicalOffsets"])
        assert all(row["key"] in (*m["keys"], m["properties"].get("UNIQ_KEY")) for m in found)
        assert found
