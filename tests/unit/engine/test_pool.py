"""Goal: with a pool of buffers appends go to memory first; readers, dispatch and flush end at the committed position;
nothing that was acknowledged is missing after a close or a crash of all processes. Method: small stores whose commits
the test makes itself, and one process that is killed."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

import cystore
from cystore.cli import main
from cystore.engine.manifest.manifest import look
from cystore.engine.pool import buffers
from cystore.errors import PoolDeficientError, StoreConfigError, StoreFormatError
from tests.support.checks import check_closed
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
ROCKETMQ = {"record_format": "rocketmq"}


def commit(store: cystore.MessageStore) -> None:
    store._attached().committer.commit_to(store._attached().control.log_end)


def folder_of(path: Path) -> Path:
    return buffers.folder_of(path, look(path).facts.store_id)


def bodies(store: cystore.MessageStore) -> list[bytes]:
    return [bytes(m.body) for m in store.scan()]


@pytest.fixture
def path(in_memory):
    path = in_memory / "store"
    yield path
    if path.exists():
        for left in buffers.SHARED_MEMORY.glob(f"{buffers.folder_of(path, '').name}*"):
            buffers.remove_buffers(left)


@pytest.mark.parametrize("more", [{}, ROCKETMQ], ids=["cystore", "rocketmq"])
def test_readers_and_dispatch_end_at_the_committed_position(path, more):
    with open_small(path, **POOL, **more) as store:
        first = store.put("T", b"first", keys=("k",))
        assert first.physical_offset == 0 and store.stats()["appended"] == first.size_bytes
        assert store.stats()["wrote"] == store.dispatch() == store.wrote_position == 0
        assert bodies(store) == [] and store.query("T", "k") == [] and not store.get("T", 0, 0).messages
        with pytest.raises(cystore.OffsetError):
            store.read(0)
        with open_small(path, read_only=True) as reader:
            assert bodies(reader) == [] and not reader.get("T", 0, 0).messages
            assert not reader.wait("T", 0, 0, 0)
            commit(store)
            assert bodies(reader) == [b"first"] == [bytes(m.body) for m in reader.get("T", 0, 0).messages]
        assert bodies(store) == [b"first"] == [bytes(m.body) for m in store.query("T", "k")]
        assert store.wait("T", 0, 0, 0) and store.stats()["wrote"] == store.stats()["appended"]
        second = store.put("T", b"second")
        assert second.queue_offset == 1 and bodies(store) == [b"first"]
    with open_small(path) as store:
        assert bodies(store) == [b"first", b"second"]
    check_closed(path, {**SETTINGS, **POOL, **more})
    assert not folder_of(path).exists()


def test_buffers_go_back_when_their_segment_is_committed_whole(path):
    with open_small(path, **POOL) as store:
        free = lambda: store.stats()["remain_transient_store_buffer_numbs"]  # noqa: E731
        assert free() == store.stats()["pool_buffers"] == 3
        put = [
            store.put("T", bytes([n]) * 1000) for n in range(80)
        ]  # five segments: more than there are buffers
        assert free() == 0 and bodies(store) == []
        commit(store)
        assert free() == 3 - (put[-1].physical_offset // LOG_BYTES < 3)
        assert bodies(store) == [bytes([n]) * 1000 for n in range(80)]
        zeros = [not any(free.read_bytes()) for free in folder_of(path).glob("free-*")]
        assert zeros and all(zeros)  # else a crash would find records of an earlier segment in them
        put = [store.put("T", bytes([n]) * 1000) for n in range(80)]
        commit(store)
        assert len(bodies(store)) == 160
    check_closed(path, {**SETTINGS, **POOL})


def test_put_fails_fast_without_a_buffer(path):
    with open_small(path, **POOL, fast_fail_if_no_buffer_in_store_pool=True) as store:
        with pytest.raises(PoolDeficientError, match="all 3 buffers") as caught:
            store.put_many([cystore.Message(topic="T", body=bytes(1000))] * 80)
        count = len(caught.value.results)
        assert caught.value.offset == 3 * LOG_BYTES and store.stats()["put_failed"] == 1
        commit(store)
        store.put("T", b"goes on")
        commit(store)
        assert len(bodies(store)) == count + 1
    check_closed(path, {**SETTINGS, **POOL})


def test_sync_put_is_committed_and_durable(path):
    with open_small(path, **POOL) as store:
        result = store.put("T", b"b", flush="sync")
        assert store.stats()["flushed"] >= result.physical_offset + result.size_bytes
        assert bodies(store) == [b"b"]
        store.put("T", b"c")
        store.flush()
        assert bodies(store) == [b"b", b"c"] and store.stats()["flushed"] == store.stats()["appended"]


def test_own_reads_see_what_they_have_to(path):
    """A second put of a key, and the end of a transaction, depend on records that this process has just put."""
    with open_small(path, **POOL, message_delay_level="1s") as store:
        once = [store.put_once("T", body, dedup_key="key", window_ms=1000) for body in (b"once", b"twice")]
        assert [one.is_new for one in once] == [True, False]
        half = store.begin("T", b"half")
        store.commit(half)
        with pytest.raises(cystore.TransactionError):
            store.rollback(half)


def test_commit_inside_a_commit_of_the_same_thread(path, monkeypatch):
    """Seen: a signal handler committed the next segment whole; the interrupted commit missed its buffer, and no put
    was accepted any more."""
    with open_small(path, **POOL) as store:
        committer = store._attached().committer
        write, handled = committer._write, []

        def interrupted(*part: object) -> None:
            write(*part)
            if not handled:
                handled.append(store.put("T", b"handler"))
                commit(store)

        monkeypatch.setattr(committer, "_write", interrupted)
        for n in range(40):
            store.put("T", bytes([n]) * 1000)
        commit(store)
        assert bodies(store) == [*(bytes([n]) * 1000 for n in range(40)), b"handler"]
        assert store.put("T", b"goes on", flush="sync").queue_offset == 41
    check_closed(path, {**SETTINGS, **POOL})


def test_buffer_that_another_thread_maps_meanwhile(path):
    """Seen: RuntimeError from a put and from a commit, because the dictionary of mappings grew inside a loop."""
    with open_small(path, **POOL) as store:
        store.put("T", b"b")
        pool = store._attached().buffers
        ended = itertools.count(-LOG_BYTES, -LOG_BYTES)

        class Meanwhile(int):
            def __ge__(self, other: int) -> bool:
                base = next(ended)
                pool._mapped[base] = None
                pool._unbuffered.add(base)
                return int(self) >= other

        pool._unbuffered.add(LOG_BYTES)
        pool.give_back(Meanwhile(0))
        pool.give_back(0)
        assert [*pool._mapped] == [0] and pool._unbuffered == {LOG_BYTES}


def test_buffer_that_cannot_be_mapped_is_a_typed_error_for_that_call(path, monkeypatch):
    """Seen: a get without memory raised OSError."""
    with open_small(path, **POOL) as first, open_small(path) as other:
        first.put("T", b"1")

        def fails(path: Path, *_: object, **__: object) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory", str(path))

        monkeypatch.setattr(buffers.files, "map_file", fails)
        with pytest.raises(cystore.StoreResourceError, match=str(folder_of(path))):
            commit(other)
        monkeypatch.undo()
        commit(other)
        assert bodies(other) == [b"1"]


def test_service_commits_and_wakes(path):
    with open_small(path, **POOL, services=("flush",), commit_interval_commit_log_ms=10) as store:
        store.put("T", b"b")
        assert store.wait("T", 0, 0, 30) and store.wait_log(0, 30)
        assert bodies(store) == [b"b"]


def kill_after(path: Path, source: str, settings: dict[str, object]) -> None:
    with Process() as process:
        process.do("import cystore, os, signal; store = cystore.open(path, **settings)", path=str(path),
                   settings={**SETTINGS, **settings})  # fmt: skip
        process.do(source)
        process.kill()


@pytest.mark.parametrize("more", [{}, ROCKETMQ], ids=["cystore", "rocketmq"])
def test_i6_first_process_finds_the_buffers_of_a_crash(path, more):
    """What was put before the pool took the segment, what was committed, what was not, and a whole segment."""
    with open_small(path, **more) as store:
        store.put("T", b"plain")
    kill_after(
        path,
        "for n in range(20): store.put('T', bytes([n]) * 1000)\nstore.flush_log()\n"
        "for n in range(20, 36): store.put('T', bytes([n]) * 1000)",
        {**POOL, **more},
    )
    assert folder_of(path).exists()
    with open_small(path, read_only=True) as reader:
        assert len(bodies(reader)) == 21  # it writes nothing, so it ends at the commit
    with open_small(path) as store:
        assert bodies(store) == [b"plain", *(bytes([n]) * 1000 for n in range(36))]
        assert store.stats()["pool_buffers"] == 3 and store.put("T", b"more").queue_offset == 37
    check_closed(path, {**SETTINGS, **POOL, **more})


def test_buffers_that_do_not_fit_the_log_are_refused(path, tmp_path):
    """Another program, which does not know the pool, appended after the crash."""
    kill_after(path, "store.put('T', b'acknowledged')", POOL)
    segment = path / "commitlog" / f"{0:020d}"
    before = segment.read_bytes()
    with open_small(tmp_path / "another") as store:
        store.put("T", b"of another program")
    segment.write_bytes((tmp_path / "another" / "commitlog" / segment.name).read_bytes())
    with pytest.raises(StoreFormatError, match="did not know the pool"):
        open_small(path)
    segment.write_bytes(before)
    with open_small(path) as store:
        assert bodies(store) == [b"acknowledged"]


@pytest.mark.parametrize("bit", [1, 16])
@pytest.mark.parametrize("at", [0, 3, 90, 300, 700, 930])
def test_i6_a_flipped_bit_in_a_buffer_is_not_copied_over_what_was_durable(path, at, bit):
    """Seen: a bit that became 1 went into the segment, over a record that a sync had made durable."""
    kill_after(
        path,
        "store.put('T', bytes(300))\nstore.put('T', b'b' * 300, flush='sync')\nstore.put('T', b'c' * 300)",
        POOL,
    )
    (taken,) = taken_of(path)
    data = bytearray(taken.read_bytes())
    data[at] ^= bit
    taken.write_bytes(data)
    with open_small(path) as store:
        found = bodies(store)
        assert found[:2] == [bytes(300), b"b" * 300]
        if found[2:] != [b"c" * 300]:  # it was hit, and not durable
            assert at > 700 and (store.stats()["holes"] or store.recovery.cut)


def test_a_damaged_record_of_a_segment_is_mended_from_its_buffer(path):
    kill_after(path, "store.put('T', b'a' * 300)\nstore.put('T', b'b' * 300, flush='sync')", POOL)
    segment = path / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[200] ^= 3
    segment.write_bytes(data)
    with open_small(path) as store:
        assert bodies(store) == [b"a" * 300, b"b" * 300] and not store.stats()["holes"]
    check_closed(path, {**SETTINGS, **POOL})


def taken_of(path: Path) -> list[Path]:
    folder = folder_of(path)
    return [folder / taken.name for taken in buffers.taken_in({p.name for p in folder.iterdir()})]


def test_number_of_bytes_that_came_from_buffers(path, caplog):
    kill_after(path, "store.put('T', b'a' * 1000)", POOL)
    nonzero = sum(map(bool, taken_of(path)[0].read_bytes()))
    with caplog.at_level("WARNING"), open_small(path) as store:
        assert bodies(store) == [b"a" * 1000]
    assert f"{nonzero} bytes came from the buffers" in caplog.text


@pytest.mark.parametrize("length", [100, LOG_BYTES * 2])
def test_buffer_of_another_length_is_refused(path, length):
    """Seen: a short buffer lost records without an error, and a long one left a segment that no open accepts."""
    kill_after(path, "for n in range(20): store.put('T', bytes([n]) * 1000)", POOL)
    last = taken_of(path)[-1]
    before = last.read_bytes()
    os.truncate(last, length)
    with pytest.raises(StoreFormatError, match=f"with {length} bytes; a segment has {LOG_BYTES}"):
        open_small(path)
    last.write_bytes(before)
    with open_small(path) as store:
        assert len(bodies(store)) == 20


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_buffers_of_another_user_are_refused(path):
    """Every user may make a folder of that name in /dev/shm, and so put records into the log."""
    kill_after(path, "store.put('T', b'b')", POOL)
    os.chown(folder_of(path), 65533, -1)
    with pytest.raises(cystore.StorePermissionError, match="user 65533"):
        open_small(path)
    with open_small(path, allow_any_owner=True) as store:
        assert bodies(store) == [b"b"]


def test_buffers_are_found_without_the_manifest(path):
    kill_after(path, "store.put('T', b'b')", POOL)
    folder = folder_of(path)
    (path / "manifest").unlink()
    older = folder.with_name(folder.name[:-1] + "-")
    older.mkdir()
    with pytest.raises(StoreFormatError, match=f"any of .*{older.name}"):
        open_small(path)
    older.rmdir()
    with open_small(path) as store:
        assert bodies(store) == [b"b"]
    assert not folder.exists()


def test_folder_that_only_its_owner_may_remove(path, monkeypatch, caplog):
    """Seen: a member of the store's group could neither close a store last whose pool another member had made, nor open
    it after that member's crash."""
    kill_after(path, "store.put('T', b'a')", POOL)
    folder = folder_of(path)
    monkeypatch.setattr(buffers.files, "remove_directory", not_allowed)
    with open_small(path) as store:
        store.put("T", b"b")
    assert list(folder.iterdir()) == [] and not (path / "abort").exists()
    caplog.clear()
    with open_small(path) as store:
        assert bodies(store) == [b"a", b"b"] and "crash" not in caplog.text
    check_closed(path, {**SETTINGS, **POOL})


def not_allowed(*_: object, **__: object) -> None:
    raise cystore.StorePermissionError("access refused")


def test_close_after_somebody_removed_the_pool(path):
    with open_small(path, **POOL) as store:
        store.put("T", b"b")
        buffers.remove_buffers(folder_of(path))
    with open_small(path) as store:
        assert bodies(store) == [b"b"]
    check_closed(path, {**SETTINGS, **POOL})


def test_power_cut_takes_what_was_not_committed(path, caplog):
    kill_after(path, "store.put('T', b'a', flush='sync'); store.put('T', b'b')", POOL)
    buffers.remove_buffers(folder_of(path))
    with caplog.at_level("INFO"), open_small(path) as store:
        assert "a crash left no buffers" in caplog.text
        assert bodies(store) == [b"a"] and store.put("T", b"c").queue_offset == 1
    check_closed(path, {**SETTINGS, **POOL})


def test_processes_share_one_pool(path):
    with open_small(path, **POOL) as store, Process() as other:
        other.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
        mine, theirs = [], []
        for _ in range(40):
            mine.append(store.put("T", b"m" * 300))
            theirs += other.do("[store.put('T', b't' * 300).queue_offset for _ in range(2)]")
        assert sorted([*theirs, *(r.queue_offset for r in mine)]) == list(range(120))
        assert other.do("len(list(store.scan()))") == 0
        other.do("store._attached().committer.commit_to(store._attached().control.log_end)")
        assert len(bodies(store)) == 120
        other.do("store.close()")
    check_closed(path, {**SETTINGS, **POOL})


def test_segment_that_others_fill_and_commit_meanwhile(path, monkeypatch):
    """Seen: a process took a second buffer for the segment, and every later commit failed with FileExistsError."""
    with open_small(path, **POOL) as store, Process() as other:
        other.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
        pool, steps = store._attached().buffers, iter((BEGIN_SEGMENT, END_SEGMENT))
        of = pool.of

        def meanwhile(base: int) -> object:
            step = next(steps, None)
            if step == END_SEGMENT:
                other.do(step)
            found = of(base)
            if step == BEGIN_SEGMENT:
                other.do(step)
            return found

        monkeypatch.setattr(pool, "of", meanwhile)
        assert store.put("T", b"mine").physical_offset == LOG_BYTES
        assert [taken.name[:20] for taken in taken_of(path)] == [f"{LOG_BYTES:020d}"]
        commit(store)
        assert bodies(store) == [b"other", b"mine"]
        other.do("store.close()")
    check_closed(path, {**SETTINGS, **POOL})


BEGIN_SEGMENT = f"""
store.put("T", b"other")
parts = store._attached()
parts.allocator.make_room({LOG_BYTES} + 8)
"""
END_SEGMENT = """
from cystore._native.append.append import end_segment
with parts.control.held("append"):
    assert end_segment(parts.control, parts.buffers.of(0))
parts.committer.commit_to(parts.control.log_end)
"""


def test_buffer_that_somebody_removed(path):
    """Seen: the commit of another process took the segment for one without a buffer, and published zeros."""
    store = open_small(path, **POOL)
    with Process() as other:
        store.put("T", b"b")
        other.do("import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
        for taken in buffers.taken_in({p.name for p in folder_of(path).iterdir()}):
            (folder_of(path) / taken.name).unlink()
        with pytest.raises(Failed) as caught:
            other.do("store.flush()")
        assert caught.value.kind == "FlushFailedError"
        with pytest.raises(cystore.FlushFailedError):
            store.put("T", b"refused")
        assert bodies(store) == []
        other.kill()
    with pytest.raises(cystore.NotDurableError):
        store.close()


def test_segment_ends_by_time_in_its_buffer(path):
    with open_small(path, **POOL, roll_interval_h=1) as store:
        store.put("T", b"a")
        commit(store)
        from cystore._native.append.append import end_segment

        parts = store._attached()
        parts.allocator.make_room(LOG_BYTES + 8)
        with parts.control.held("append"):
            assert end_segment(parts.control, parts.buffers.of(0))
        assert store.put("T", b"b").physical_offset == LOG_BYTES
        commit(store)
        assert bodies(store) == [b"a", b"b"]
    check_closed(path, {**SETTINGS, **POOL})


# ------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({**POOL, "flush_disk_type": "sync"}, "flush_disk_type='async'"),
        ({**POOL, "broker_role": "slave", "ha_master_address": "127.0.0.1:1"}, "'slave' has no pool"),
        ({"transient_store_pool_size": 2}, "transient_store_pool_size is for"),
        ({"fast_fail_if_no_buffer_in_store_pool": True}, "fast_fail"),
        ({"commit_interval_commit_log_ms": 1}, "commit_interval_commit_log_ms is for"),
        ({**POOL, "transient_store_pool_size": 0}, "must be 1 to"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_contradict_each_other(path, settings, match):
    with pytest.raises(StoreConfigError, match=match):
        open_small(path, **settings)


def test_pool_larger_than_memory(path, monkeypatch):
    """The error has both sizes; nothing stays in memory, and the store opens when it fits."""
    monkeypatch.setattr(buffers, "available_memory", lambda: 2 * LOG_BYTES)
    with pytest.raises(StoreConfigError, match=f"need {3 * LOG_BYTES} bytes.* has {2 * LOG_BYTES}"):
        open_small(path, **POOL)
    monkeypatch.undo()
    monkeypatch.setattr(buffers.files, "reserve", no_space)
    with pytest.raises(StoreConfigError, match="transient_store_pool_size: 3 buffers"):
        open_small(path, **POOL)
    assert not folder_of(path).exists()
    monkeypatch.undo()
    with open_small(path) as store:
        assert store.stats()["pool_buffers"] == 3


def no_space(path: Path, length: int) -> None:
    with buffers.files.translated(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_pool_begins_when_nobody_has_the_store_open(path):
    with open_small(path) as store:
        store.put("T", b"b")
        with pytest.raises(StoreConfigError, match="have no pool"):
            open_small(path, **POOL)
    with open_small(path, **POOL) as store:
        assert store.stats()["pool_buffers"] == 3 and bodies(store) == [b"b"]
        with (
            pytest.raises(StoreConfigError, match="cystore config"),
            open_small(path, transient_store_pool_size=4),
        ):
            pass
        store.configure(transient_store_pool_enable=False)
    with open_small(path) as store:
        assert store.stats()["pool_buffers"] == 0 and bodies(store) == [b"b"]


def test_pool_that_does_not_fit_keeps_no_store_closed(path, monkeypatch):
    """Seen: neither an open nor `cystore config` got past a pool that there was no memory for."""
    monkeypatch.setattr(buffers, "available_memory", lambda: 2 * LOG_BYTES)
    with open_small(path) as store:
        store.put("T", b"a")
    with pytest.raises(StoreConfigError, match="3 buffers"):
        open_small(path, **POOL)
    with open_small(path) as store:
        assert store.stats()["pool_buffers"] == 0
    monkeypatch.undo()
    kill_after(path, "store.put('T', b'b')", POOL)
    monkeypatch.setattr(buffers, "available_memory", lambda: 2 * LOG_BYTES)
    with pytest.raises(StoreConfigError, match="3 buffers"):
        open_small(path)
    assert main(["config", str(path), "--set", "transient_store_pool_enable=false"]) == 0
    with open_small(path) as store:
        assert bodies(store) == [b"a", b"b"] and store.stats()["pool_buffers"] == 0


@pytest.mark.parametrize("value", [False, None])
def test_pool_that_is_switched_off_before_a_crash(path, value):
    """Seen with None: the next open did not look for the buffers."""
    kill_after(path, f"store.configure(transient_store_pool_enable={value}); store.put('T', b'b')", POOL)
    with open_small(path) as store:
        assert bodies(store) == [b"b"] and store.stats()["pool_buffers"] == 0
    check_closed(path, SETTINGS)


def test_another_shared_memory_is_named(path, monkeypatch, tmp_path):
    with open_small(path, **POOL):
        monkeypatch.setattr(buffers, "SHARED_MEMORY", tmp_path)
        with pytest.raises(StoreFormatError, match="another /dev/shm"):
            open_small(path)
        monkeypatch.undo()


def test_commit_that_fails_is_named_by_close(path, monkeypatch):
    store = open_small(path, **POOL)
    store.put("T", b"b")
    monkeypatch.setattr(store._attached().committer, "_write", refuse)
    with pytest.raises(cystore.NotDurableError, match="from 0 to"):
        store.close()
    assert folder_of(path).exists()
    monkeypatch.undo()
    with open_small(path) as store:
        assert bodies(store) == [b"b"]


def refuse(*_: object) -> None:
    raise cystore.StoreFullError("no space")
