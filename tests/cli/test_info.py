"""Goal: `cystore info` says what a store is, holds and takes, in every state, and changes nothing. Method: its
numbers against the files, the library and RocketMQ's own list."""

from __future__ import annotations

import os

import pytest

import cystore
from cystore.engine.files.compacted_file import numbers, path_of
from tests.support.cli import stores
from tests.support.cli.command import golden_settings
from tests.support.golden.stores import NAMES


def info(command, path, *arguments):
    (found,) = command.json_lines("info", path, *arguments)
    return found


def queues(found):
    return {(q["topic"], q["queue_id"]): (q["min_offset"], q["max_offset"]) for q in found["queues"]}


def test_a_closed_store(command, store_path):
    puts = stores.write(store_path, 200)
    before = stores.snapshot(store_path)
    found = info(command, store_path)
    assert stores.snapshot(store_path) == before
    assert (found["state"], found["writable"], found["has_cystore_records"]) == ("closed", True, True)
    at = found["positions"]
    end = puts[-1].physical_offset + puts[-1].size_bytes
    assert (at["min_physical_offset"], at["wrote"], at["dispatched"], at["dispatch_behind_bytes"]) == (
        0,
        end,
        end,
        0,
    )
    assert at["last_store_timestamp_ms"] == puts[-1].store_timestamp_ms
    assert queues(found) == {(topic, queue_id): (0, 50) for topic in stores.TOPICS for queue_id in (0, 1)}
    assert found["checkpoint"]["watermark"] == end
    assert [f["next_entry"] - 1 for f in found["index_files"]] == [400]
    assert found["holes"] == []
    assert found["compaction"] is None
    segment = found["segments"][0]
    assert segment["name"] == "0" * 20
    assert segment["size_bytes"] == stores.SMALL["mapped_file_size_commit_log_bytes"]
    status = (store_path / "commitlog" / segment["name"]).stat()
    assert segment["allocated_bytes"] == status.st_blocks * 512
    assert found["disk"]["total"]["files"] == sum(1 for p in store_path.rglob("*") if p.is_file())
    assert found["disk"]["total"]["size_bytes"] == sum(
        p.stat().st_size for p in store_path.rglob("*") if p.is_file()
    )
    assert 0 < found["disk_free_bytes"] < found["disk_capacity_bytes"]


def test_a_crashed_store(command, store_path):
    stores.write(store_path, 10)
    stores.write_and_crash(store_path, 30, start=10)
    before = stores.snapshot(store_path)
    found = info(command, store_path)
    assert stores.snapshot(store_path) == before
    assert found["state"] == "crashed"
    assert sum(high - low for low, high in queues(found).values()) == 40
    assert "40 records" in found["recovery"] or "30 records" in found["recovery"]


def test_a_store_in_use(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        store.put_many(stores.messages(10))
        store.dispatch()
        at = store.stats()
        store.put_many(stores.messages(10, 10))
        found = info(command, store_path)
        assert found["state"] == "live"
        assert found["recovery"] is None
        assert found["positions"]["put_count"] == 20
        assert found["positions"]["dispatched"] == at["dispatched"]
        assert found["positions"]["dispatch_behind_bytes"] == store.stats()["wrote"] - at["dispatched"] > 0
        assert found["flags"] == []
        store.set_writable(False)
        assert info(command, store_path)["flags"] == ["not_writable"]
        assert "NOT WRITABLE: switched off by an operator" in command.ok("info", store_path)
        store.set_writable(True)


def test_a_store_that_one_process_has_for_itself(command, store_path):
    with cystore.open(store_path, exclusive=True, **stores.SMALL) as store:
        store.put("t", b"")
        found = info(command, store_path)
        assert found["state"] == "exclusive"
        assert "positions" not in found
        assert len(found["segments"]) >= 1
        assert "in exclusive use by one process" in command.ok("info", store_path)


def test_a_store_with_a_pool(command, store_path):
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    with cystore.open(store_path, **{**stores.SMALL, **pool, "services": ()}) as store:
        put = store.put("T", b"b")
        at = info(command, store_path)["positions"]
        assert (at["wrote"], at["appended"], at["pool_buffers"]) == (0, put.size_bytes, 2)
        assert at["remain_transient_store_buffer_numbs"] == 1
        text = command.ok("info", store_path)
        assert f"pool: 2 buffers, 1 free; appended to {put.size_bytes}, committed to 0" in text


def test_holes_are_listed(command, store_path):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 100)
    (store_path / "abort").touch()
    with cystore.open(store_path) as store:
        assert store.stats()["holes"] == [(puts[10].physical_offset, puts[11].physical_offset)]
    (hole,) = info(command, store_path)["holes"]
    assert (hole["begin"], hole["end"]) == (puts[10].physical_offset, puts[11].physical_offset)
    assert (store_path / "quarantine" / hole["copy"]).exists()
    (lost,) = info(command, store_path)["given_up"]
    assert lost["end"] - lost["begin"] == 1
    text = command.ok("info", store_path)
    assert "holes: 1\n" in text and "queue offsets whose messages are lost:\n" in text


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(command, unpack_golden, name):
    golden = unpack_golden(name)
    arguments = [*golden_settings(golden), "--set", "damaged_range=truncate"]
    before = stores.snapshot(golden.store)
    found = info(command, golden.store, *arguments)
    assert queues(found) == {
        (q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"])
        for q in golden.rows_of("queue")
        if q["maxOffset"] > q["minOffset"]
    }
    (log,) = golden.rows_of("commitlog")
    assert (found["positions"]["min_physical_offset"], found["positions"]["wrote"]) == (
        log["minOffset"],
        log["maxOffset"],
    )
    assert found["state"] == ("crashed" if golden.rows_of("state")[0]["abort"] else "closed")
    assert found["has_cystore_records"] is False
    assert stores.snapshot(golden.store) == before


def test_lines_for_people(command, store_path):
    stores.write(store_path, 200)
    text = command.ok("info", store_path)
    assert text.startswith(f"{store_path}: not in use; closed cleanly\n")
    for part in (
        "segments: ",
        "topics: 2, queues: 4",
        "index files: 1",
        "checkpoint: log 20",
        "disk: ",
        "dispatch behind: 0",
    ):
        assert part in text
    assert any(line.split() == ["alpha", "0", "0", "50", "50"] for line in text.splitlines())


def test_a_directory_that_may_only_be_read(command, store_path):
    stores.write(store_path, 10)
    paths = [store_path, *store_path.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = info(command, store_path)
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert found["writable"] is (os.geteuid() == 0)  # permissions do not bind root
    assert sum(high for _, high in queues(found).values()) == 10


@pytest.mark.parametrize("what", ["missing", "file", "foreign"])
def test_no_store(command, tmp_path, what):
    path = tmp_path / "place"
    if what == "file":
        path.write_text("x")
    elif what == "foreign":
        path.mkdir()
        (path / "letters.txt").write_text("x")
    done = command.run("info", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr


def test_what_keeps_the_cleaner_from_the_log(command, store_path):
    """A hold is shown with its owner, from where on, and since when."""
    puts = stores.write(store_path, 20)
    with cystore.open(store_path, **stores.SMALL) as store:
        store.hold("reader-7", puts[5].physical_offset)
    (need,) = info(command, store_path)["needs"]
    assert need == {
        "owner": "reader-7",
        "physical_offset": puts[5].physical_offset,
        "bytes": puts[-1].physical_offset + puts[-1].size_bytes - puts[5].physical_offset,
        "since_ms": puts[5].store_timestamp_ms,
        "max_age_ms": None,
    }
    assert "reader-7" in command.ok("info", store_path)


def test_compaction(command, store_path):
    with cystore.open(store_path, services="none", compacted_topics="state") as store:
        for number in range(4):
            store.put("state", b"%d" % number, keys=["k"])
        store.flush()
        done = store.compact()
    found = info(command, store_path)["compaction"]
    file = found.pop("file")
    assert (file["covered"], file["records"], file["keys"], file["examined"]) == (done.covered, 1, 1, 4)
    assert found == {"topics": "state", "dead_ratio": 0.75, "missing": None, "damaged": 0, "findings": []}
    path = path_of(store_path, *numbers(store_path))
    path.unlink()
    shown = command.ok("info", store_path)
    assert "compaction of state: 1 records of 1 keys" in shown
    assert f"MISSING: the compacted file {path}" in shown
    compacted = command.run("compact", store_path)
    assert compacted.returncode == 1
    assert "is missing" in compacted.stdout
    assert "damage that compaction met: 1" in command.ok("info", store_path)
