"""Goal: a transaction has one end also while the store cannot learn of the ends that were appended: the disk has no
room for queues, or a process that dispatches is stopped. Method: a disk of a few megabytes; a stopped process."""

from __future__ import annotations

import pytest

import cystore
from cystore.errors import StoreTimeoutError
from tests.support.disks.small_disk import on_small_disk
from tests.support.process import Process

FULL = """
import os, sys, cystore
root, first = sys.argv[1:]
with cystore.open(root + "/s", mapped_file_size_commit_log_bytes=1 << 20, mapped_file_size_consume_queue_bytes=2000,
                  max_hash_slot_num=100, max_index_num=400, allocate_ahead_bytes=4096) as store:
    store.put("orders", b"before")
    half = store.begin("orders", b"one")
    assert store.open_transactions() == [half]
    with open(root + "/fill", "wb", buffering=0) as file:
        for count in (4096, 1):
            try:
                while True:
                    file.write(bytes(count))
            except OSError as error:
                assert error.errno == 28
    getattr(store, first)(half)
    for end in (store.commit, store.rollback):
        try:
            end(half)
        except cystore.StoreFullError:
            print("full")
    os.unlink(root + "/fill")
    try:
        store.commit(half)
    except cystore.TransactionError as error:
        print(error)
    print([bytes(one.body) for one in store.get("orders", 0, 0).messages])
"""
IN_DISPATCH = """
import cystore
store = cystore.open(path)
lock = store._attached().control.held_if_free("dispatch", within_ms=60_000)
assert lock.__enter__().held
"""


@pytest.mark.parametrize("first", ["commit", "rollback"])
def test_a_full_disk_ends_no_transaction_twice(tmp_path, first):
    """Seen: each further commit put the message once more, because the queue of ends could not be made."""
    lines = on_small_disk("8m", tmp_path, FULL, first).splitlines()
    assert lines[:2] == ["full", "full"]
    assert ("committed" if first == "commit" else "rolled back") in lines[2]
    assert lines[3] == str([b"before", b"one"] if first == "commit" else [b"before"])


def test_a_stopped_dispatcher_ends_no_transaction_twice(tmp_path):
    path = tmp_path / "s"
    with (
        cystore.open(
            path, os_page_cache_busy_timeout_ms=60_000
        ) as store,  # its other thread may be at it, too
        cystore.open(path, os_page_cache_busy_timeout_ms=50) as hasty,
        Process() as other,
    ):
        half = store.begin("orders", b"one")
        store.dispatch()
        other.do(IN_DISPATCH, path=str(path))
        other.stop()
        store.commit(half)
        for end in (hasty.commit, hasty.rollback):
            with pytest.raises(StoreTimeoutError, match="ends of transactions may be unknown"):
                end(half)
        other.kill()
        with pytest.raises(cystore.TransactionError, match="it was committed"):
            store.commit(half)
        assert [bytes(one.body) for one in store.get("orders", 0, 0).messages] == [b"one"]
