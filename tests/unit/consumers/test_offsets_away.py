"""Goal: a stopped process, a table that somebody deletes and a full disk cost a group's offsets nothing, and are
told. Method: other processes, stopped inside a lock; files removed under a store; a disk of a few megabytes."""

from __future__ import annotations

import pytest

import cystore
from cystore.consumers import table
from cystore.consumers.offset_file import read_consumer_offsets
from cystore.errors import StoreIOError, StoreTimeoutError
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # about full disks

TABLE = "config/consumers.table"
IN_A_LOCK = """
import cystore
store = cystore.open(path)
lock = store.groups._table().table._locked(place)
lock.__enter__()
"""


def filled(path, **settings):
    store = cystore.open(path, **settings)
    store.put("orders", b"one")
    store.put("orders", b"two")
    return store


def test_a_stopped_process_that_has_a_row_ends_waits_and_holds_up_no_get(tmp_path, monkeypatch, caplog):
    """Seen: a get that named its group hung for as long as the process was stopped."""
    monkeypatch.setattr(table, "COUNT_WAIT_S", 0.05)
    with filled(tmp_path / "s", sync_flush_timeout_ms=50) as store, Process() as other:
        store.groups.commit("billing", "orders", 0, 1)
        other.do(IN_A_LOCK, path=str(store.path), place=table.ROWS)
        other.stop()
        for _ in range(3):
            assert len(store.get("orders", 0, 0, group="billing").messages) == 2
        assert caplog.text.count("gets of groups are not counted for 10 s") == 1
        with pytest.raises(StoreTimeoutError, match="another process has had a lock"):
            store.groups.commit("billing", "orders", 0, 2)
        other.kill()
        store.groups.commit("billing", "orders", 0, 2)
        assert store.groups.offset("billing", "orders", 0) == 2


def test_a_stopped_process_that_opens_the_table_ends_the_wait_of_others(tmp_path):
    with filled(tmp_path / "s", sync_flush_timeout_ms=50) as store, Process() as other:
        other.do(IN_A_LOCK, path=str(store.path), place=table.OPENING)
        other.stop()
        with pytest.raises(StoreTimeoutError, match="another process has had a lock"):
            store.groups.names()
        other.kill()
        assert store.groups.names() == []


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_table_that_is_gone_under_a_store_is_told_and_its_offsets_are_in_the_file(tmp_path, replaced):
    """Seen: the offsets that a group committed from then on were nowhere after the store was closed."""
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 1)
        store.groups.save()
        (store.path / TABLE).unlink()
        if replaced:
            (store.path / TABLE).write_bytes(bytes(4096))
        store.groups.commit("billing", "orders", 0, 2)
        with pytest.raises(StoreIOError, match=r"was deleted or replaced.*close all processes"):
            store.groups.save()
        assert read_consumer_offsets(store.path).offsets == {("orders", "billing", 0): 2}
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.offset("billing", "orders", 0) == 2


ON_A_FULL_DISK = """
import os, sys
import cystore
from tests.support.small_stores import open_small
root = sys.argv[1]
store = open_small(os.path.join(root, "s"), mapped_file_size_commit_log_bytes=1 << 18)
put = store.put("T", b"x")
store.groups.commit("first", "T", 0, 1)
store.groups.save()
rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT)
try:
    while os.write(rest, bytes(4096)):
        pass
except OSError:
    pass
committed, refused = ["first"], 0
for number in range(300):
    try:
        store.groups.commit(f"g{number}", "T", 0, 1)
        committed.append(f"g{number}")
    except cystore.StoreFullError:
        refused += 1
assert refused > 100, (refused, len(committed))
assert sorted(store.groups.names()) == sorted(committed)
os.close(rest)
os.unlink(os.path.join(root, "rest"))
store.groups.commit("later", "T", 0, 1)
store.groups.save()
store.close()
with open_small(os.path.join(root, "s"), mapped_file_size_commit_log_bytes=1 << 18) as store:
    assert sorted(store.groups.names()) == sorted([*committed, "later"])
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_a_full_disk_refuses_new_groups_and_keeps_the_others(tmp_path):
    assert on_small_disk("3m", tmp_path, ON_A_FULL_DISK) == "went on\n"


NOT_SAVED = """
import os, sys, cystore
root = sys.argv[1]
with cystore.open(root + "/s", mapped_file_size_commit_log_bytes=1 << 20, mapped_file_size_consume_queue_bytes=2000,
                  max_hash_slot_num=100, max_index_num=400) as store:
    for n in range(2):
        store.put("orders", b"x", queue_id=n)
        store.groups.commit("g", "orders", n, 1)
    store.flush()
    store.groups.save()
    for name, call in (("reset", lambda: store.groups.reset("g", "orders", "first")),
                       ("remove", lambda: store.groups.remove("g"))):
        with open(root + "/fill", "wb", buffering=0) as file:
            for count in (4096, 1):
                try:
                    while True:
                        file.write(bytes(count))
                except OSError as error:
                    assert error.errno == 28
        try:
            call()
            print(name, "was saved on a full disk")
        except cystore.StoreFullError:
            print(name, [store.groups.offset("g", "orders", n) for n in range(2)])
        os.unlink(root + "/fill")
    assert store.groups.reset("g", "orders", "first") == {0: 0, 1: 0}
    assert store.groups.remove("g") == 2
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_a_reset_that_cannot_be_saved_moves_nothing(tmp_path):
    """Seen: StoreFullError, and the group stood at the beginning."""
    assert on_small_disk("8m", tmp_path, NOT_SAVED) == "reset [1, 1]\nremove [1, 1]\n"


FULL_DISK = """
import logging, os, sys, cystore
logging.basicConfig(stream=sys.stdout, format="%(message)s")
root = sys.argv[1]
with cystore.open(root + "/s", mapped_file_size_commit_log_bytes=1 << 20, mapped_file_size_consume_queue_bytes=2000,
                  max_hash_slot_num=100, max_index_num=400) as store:
    store.put("orders", b"one")
    store.get("orders", 0, 0, group="known")
    with open(root + "/fill", "wb", buffering=0) as file:
        for count in (4096, 1):
            try:
                while True:
                    file.write(bytes(count))
            except OSError as error:
                assert error.errno == 28
    found = [len(store.get("orders", 0, 0, group=f"group{number}").messages) for number in range(100)]
    logging.warning("found %s", found == [1] * 100)  # no print: a service's thread may log at the same moment
    os.unlink(root + "/fill")
"""


def test_a_get_that_names_its_group_does_not_fail_on_a_full_disk(tmp_path):
    """Seen: StoreFullError, because the table had no room for the row that counts it."""
    told = on_small_disk("8m", tmp_path, FULL_DISK).splitlines()
    assert "found True" in told
    assert sum("gets of groups are not counted" in line for line in told) == 1


def test_a_get_that_names_its_group_takes_what_a_get_takes(tmp_path):
    """Seen: a TypeError for a topic that is a subclass of str."""
    with filled(tmp_path / "s") as store:
        topic = type("Topic", (str,), {})("orders")
        assert len(store.get(topic, 0, 0, group="billing").messages) == 2
        assert store.groups.reads("billing")["orders", 0].gets == 1
