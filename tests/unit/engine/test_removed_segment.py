"""Goal: what is appended to a commit log file whose name is gone is never acknowledged as durable (I3). Method: the
file is unlinked under a live store, as RocketMQ's load does before it looks at the lock."""

from __future__ import annotations

import contextlib

import pytest

import cystore

SEGMENT_BYTES = 1 << 16


@pytest.fixture
def store(tmp_path):
    opened = cystore.open(tmp_path / "store", mapped_file_size_commit_log_bytes=SEGMENT_BYTES, services=())
    yield opened
    with contextlib.suppress(cystore.NotDurableError):
        opened.close()


def unlink_log(store):
    for file in (store.path / "commitlog").glob("0*"):
        file.unlink()


def test_a_sync_put_into_a_removed_file_is_refused_with_its_result(store):
    store.put("T", b"before", flush="sync")
    unlink_log(store)
    with pytest.raises(cystore.FlushFailedError) as caught:
        store.put("T", b"after", flush="sync")
    assert [result.queue_offset for result in caught.value.results] == [1]
    assert (store.path / "abort").exists()


def test_another_process_that_never_mapped_the_file_does_not_call_it_durable(store):
    """Whoever leads a flush covers the appends of all. Each close says what is not durable, also where others stay."""
    other = cystore.open(store.path)
    put = store.put("T", b"after")
    unlink_log(store)
    with pytest.raises(cystore.FlushFailedError):
        other.flush()
    assert other.stats()["flushed"] <= put.physical_offset
    with pytest.raises(cystore.FlushFailedError):
        store.put("T", b"after", flush="sync")
    with pytest.raises(cystore.NotDurableError):
        other.close()


def test_i5_nobody_publishes_room_in_a_removed_file(tmp_path):
    """Seen: a process that had never mapped the file reserved nothing and published the room; on a full disk a signal
    killed the process that appended there."""
    settings = {
        "mapped_file_size_commit_log_bytes": SEGMENT_BYTES,
        "allocate_ahead_bytes": SEGMENT_BYTES // 4,
    }
    one, other = (cystore.open(tmp_path / "store", services=(), **settings) for _ in range(2))
    with contextlib.suppress(cystore.NotDurableError), one, other:
        one.put("T", b"")
        unlink_log(one)
        room = one.stats()["allocated"]
        with pytest.raises(cystore.StoreIOError, match="the file was removed"):
            other._parts.allocator._allocate_up_to(room + 1)
        assert one.stats()["allocated"] == room
        with pytest.raises(cystore.StoreIOError, match="the file was removed"):
            one.put("T", bytes(SEGMENT_BYTES // 2))


def test_nothing_is_accepted_after_it_and_reads_go_on(store):
    store.put("T", b"before")
    unlink_log(store)
    with pytest.raises(cystore.FlushFailedError):
        store.flush()
    with pytest.raises(cystore.FlushFailedError):
        store.put("T", b"after")
    assert [bytes(m.body) for m in store.get("T", 0, 0).messages] == [b"before"]


def test_stepping_to_a_removed_file_is_refused(store):
    store.put("T", b"x")
    store._parts.allocator.run_once()  # makes the next file, and room in it
    for file in (store.path / "commitlog").glob("0*"):
        if int(file.name):
            file.unlink()
    more = [cystore.Message(topic="T", body=b"x" * 1000) for _ in range(SEGMENT_BYTES // 1000 + 2)]
    for _ in range(2):
        with pytest.raises(cystore.FlushFailedError, match="Stale file handle"):
            store.put_many(more, flush="sync")
    assert store.stats()["flushed"] <= SEGMENT_BYTES
    assert [bytes(m.body) for m in store.get("T", 0, 0, 1).messages] == [b"x"]
