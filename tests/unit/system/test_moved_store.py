"""Goal: a process writes into the directory that it opened, and refuses to write once its path leads elsewhere.
Method: the directory is moved, replaced and deleted under live processes."""

from __future__ import annotations

import shutil

import pytest

import cystore
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

pytestmark = pytest.mark.unsanitized  # about directories


def replaced(path):
    """Moves a store away and puts another one in its place."""
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    open_small(path).close()
    return elsewhere


def moved(path):
    """Moves a store away."""
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    return elsewhere


def deleted(path):
    """Deletes a store."""
    shutil.rmtree(path)
    return None


def left(store):
    """Closes a store that may not be where it was."""
    try:
        store.close()
    except cystore.StoreError:
        return False
    return True


@pytest.mark.parametrize("change", [moved, replaced, deleted])
def test_sync_puts_are_refused_at_once(tmp_path, change):
    """Seen: 332 of 400 sync puts were acknowledged into a new directory of the old name."""
    path = tmp_path / "s"
    store = open_small(path)
    try:
        store.put("T", b"before", flush="sync")
        elsewhere = change(path)
        for _ in range(2):
            with pytest.raises(cystore.StoreMovedError, match="moved, deleted or replaced"):
                store.put("T", b"after", flush="sync")
        with pytest.raises(cystore.StoreMovedError):
            store.flush()
        with pytest.raises(cystore.StoreMovedError):
            store.put_many([cystore.Message(topic="T", body=body_for(LOG_BYTES - 8))] * 3)
    finally:
        left(store)
    if elsewhere is not None:
        with open_small(elsewhere) as found:
            assert bytes(found.get("T", 0, 0).messages[0].body) == b"before"


def test_nothing_is_made_in_the_new_directory_of_the_old_name(tmp_path):
    path = tmp_path / "s"
    store = open_small(path)
    store.put("T", b"before", keys=("k",))
    path.rename(tmp_path / "elsewhere")
    path.mkdir()
    for call in (store.flush, store.dispatch, store.checkpoint, lambda: store.hold("h", 0)):
        try:
            call()
        except cystore.StoreError:
            continue
    left(store)
    assert list(path.iterdir()) == []


def test_plain_puts_are_refused_after_the_next_turn_of_a_service(tmp_path):
    path = tmp_path / "s"
    with Process() as writer:
        writer.do(
            "import cystore, logging, time; logging.disable(); store = cystore.open(path, **settings)",
            path=str(path),
            settings={**SETTINGS, "services": ["flush"], "flush_interval_commit_log_ms": 10},
        )
        writer.do("store.put('T', b'before')")
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(Failed) as caught:
            writer.do("until = time.monotonic() + 30\nwhile time.monotonic() < until: store.put('T', b'')")
        assert caught.value.kind == "StoreMovedError"


def test_a_store_that_is_moved_back_goes_on(tmp_path):
    """Nobody else was stopped: a moved directory is no failed disk."""
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"1", flush="sync")
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(cystore.StoreMovedError):
            store.put("T", b"2", flush="sync")
        with open_small(tmp_path / "elsewhere") as there:
            there.put("T", b"3", flush="sync")
        (tmp_path / "elsewhere").rename(path)
        store.put("T", b"4", flush="sync")
        assert [bytes(m.body) for m in store.get("T", 0, 0).messages] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("attached", [False, True])
def test_a_reader_of_a_deleted_directory_is_told_so(tmp_path, attached):
    """Seen: a handle that only reads said that a file of the log is missing, or that the directory is no store."""
    path = tmp_path / "s"
    writer = open_small(path)
    for _ in range(40):
        writer.put("T", body_for(1024))
    writer.dispatch()
    if not attached:
        writer.close()
    with open_small(path, read_only=True) as reader:
        deleted(path)
        for read in (lambda: reader.get("T", 0, 20), lambda: list(reader.scan()), lambda: reader.read(1024)):
            with pytest.raises(cystore.StoreMovedError, match="deleted"):
                read()
    left(writer)


def test_a_query_of_a_deleted_directory_is_told_so(tmp_path):
    """Seen: beside a live writer, a handle that had not queried before found nothing, although `get` said that the
    directory is gone."""
    path = tmp_path / "s"
    writer = open_small(path)
    for n in range(40):
        writer.put("T", b"x", keys=(f"k{n % 2}",))
    writer.dispatch()
    with open_small(path, read_only=True) as reader:
        deleted(path)
        for read in (lambda: reader.query("T", "k1"), lambda: reader.query_many("T", ["k0", "k1"])):
            for _ in range(2):
                with pytest.raises(cystore.StoreMovedError, match="deleted"):
                    read()
    left(writer)


CHANGES = {
    "clean": lambda store: store.clean(),
    "clean_due": lambda store: store.clean_due(),
    "compact_due": lambda store: store.compact_due(),
    "configure": lambda store: store.configure(file_reserved_time_h=1),
    "delete_topic": lambda store: store.delete_topic("T"),
    "deliver": lambda store: store.deliver(),
    "dispatch": lambda store: store.dispatch(),
    "groups.commit": lambda store: store.groups.commit("G", "T", 0, 1),
    "hold": lambda store: store.hold("name", 0),
    "remove_unused_queues": lambda store: store.remove_unused_queues(),
    "scrub": lambda store: store.scrub(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_calls_that_change_the_store_are_refused_at_once(tmp_path, change):
    """Seen: clean() of a moved store logged a traceback for each step and went on."""
    store = open_small(tmp_path / "s", file_reserved_time_h=0)
    for _ in range(30):
        store.put("T", body_for(LOG_BYTES // 4))
    store.flush()
    elsewhere = moved(tmp_path / "s")
    before = sorted(path.name for path in (elsewhere / "commitlog").iterdir())
    with pytest.raises(cystore.StoreMovedError):
        CHANGES[change](store)
    assert sorted(path.name for path in (elsewhere / "commitlog").iterdir()) == before
    elsewhere.rename(tmp_path / "s")
    store.close()
