"""Goal: a process writes into the directory that it opened, and refuses each call once its path leads elsewhere;
handles that follow their path continue there. Method: the directory is moved, replaced, restored and deleted under live
processes, and so is the folder that it is in."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time

import pytest

import cystore
from tests.support.child import in_child
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


# ------------------------------------------------------------------------------- every handle, every kind of change


def emptied(path):
    """Puts an empty directory in a store's place."""
    path.rename(path.with_name("elsewhere"))
    path.mkdir()


def restored(path):
    """The documented restore: a snapshot takes the place of its store, and has its id."""
    snapshot(path, path.with_name("backup"))
    path.rename(path.with_name("elsewhere"))
    snapshot(path.with_name("backup"), path)


def parent_renamed(path):
    """Renames the folder that the store is in."""
    path.parent.rename(path.parent.with_name("another"))


def parent_replaced(path):
    """Puts a copy of the folder that the store is in, with a snapshot in it, in that folder's place."""
    parent = path.parent
    snapshot(path, parent.with_name("backup"))
    parent.rename(parent.with_name("another"))
    parent.mkdir()
    snapshot(parent.with_name("backup"), path)


def linked(path):
    """Moves a store away and puts a link to a snapshot in its place."""
    snapshot(path, path.with_name("backup"))
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("backup"))


def snapshot(source, target):
    command = [sys.executable, "-m", "cystore", "snapshot", str(source), str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


GONE = {"moved": moved, "deleted": deleted, "emptied": emptied, "parent_renamed": parent_renamed}
THERE = {"replaced": replaced, "restored": restored, "parent_replaced": parent_replaced, "linked": linked}
EVERY = {**GONE, **THERE}


@pytest.fixture
def place(tmp_path):
    """A path of a store in a folder that can be moved."""
    (tmp_path / "parent").mkdir()
    return tmp_path / "parent" / "s"


def due(store):
    """Waits until a call of the handle has to look at the place again."""
    control = (store._parts or store._private).control
    until_s = time.monotonic() + 60
    while not control.place_due and time.monotonic() < until_s:
        threading.Event().wait(0.01)


# Every call of a handle that may write. "bound": functions that the program took before.
CALLS = {
    "put": lambda s: s.put("T", b"x"),
    "put with properties": lambda s: s.put("T", b"x", properties={"p": "v"}),
    "put_many": lambda s: s.put_many([cystore.Message(topic="T", body=b"x")]),
    "put_once": lambda s: s.put_once("T", b"x", dedup_key="k", window_ms=1000),
    "get": lambda s: s.get("T", 0, 0),
    "get with tags": lambda s: s.get("T", 0, 0, tags="A"),
    "query": lambda s: s.query("T", "k"),
    "query_many": lambda s: s.query_many("T", ["k"]),
    "read": lambda s: s.read(0),
    "scan": lambda s: list(s.scan()),
    "topics": lambda s: s.topics(),
    "stats": lambda s: s.stats(),
    "whole": lambda s: s.whole.query("T", "k"),
    "snapshot": lambda s: s.snapshot(),
    "offset_by_time": lambda s: s.offset_by_time("T", 0, 0),
    "next_queue_offset": lambda s: s.next_queue_offset("T", 0),
    "wrote_position": lambda s: s.wrote_position,
    "catch_up": lambda s: s.catch_up(),
    "wait": lambda s: s.wait("T", 0, 99, 60),
    "wait_log": lambda s: s.wait_log(1 << 40, 60),
    "key_seen": lambda s: s.key_seen("k"),
    "wait_key": lambda s: s.wait_key("k", 0, 60),
    "wake_key": lambda s: s.wake_key("k"),
    "settings": lambda s: s.settings,
    "maintenance": lambda s: s.maintenance,
    "duties": lambda s: s.duties,
    "groups": lambda s: s.groups.offsets("G"),
    "groups.commit": lambda s: s.groups.commit("G", "T", 0, 1),
    "consumer": lambda s: s.consumer("G", "T"),
    "dispatchers": lambda s: s.dispatchers.states(),
    "listen": lambda s: s.listen("T", lambda *_: None),
    "aio.get": lambda s: asyncio.run(s.aio.get("T", 0, 99, timeout_s=60)),
    "begin": lambda s: s.begin("T", b"x"),
    "open_transactions": lambda s: s.open_transactions(),
    "asked_to_leave": lambda s: s.asked_to_leave(),
    "check_usable": lambda s: s.check_usable(),
}


@pytest.mark.parametrize("change", EVERY)
def test_every_call_of_a_writing_handle_is_refused(place, change):
    """Seen: get, query, waits, groups and plain puts continued in the directory that was moved away, without an end."""
    store = open_small(place)
    store.put("T", b"before", keys=("k",))
    bound = {name: getattr(store, name) for name in ("put", "get", "query", "read", "put_many")}
    EVERY[change](place)
    due(store)
    accepted = []
    for name, call in CALLS.items():
        try:
            call(store)
        except cystore.StoreMovedError:
            continue
        else:
            accepted.append(name)
    assert accepted == []
    for name, values in {"put": ("T", b"x"), "get": ("T", 0, 0), "query": ("T", "k"), "read": (0,)}.items():
        with pytest.raises(cystore.StoreMovedError):
            bound[name](*values)
    with pytest.raises(cystore.StoreMovedError):
        bound["put_many"]([cystore.Message(topic="T", body=b"x")])
    left(store)


def test_consumers_and_dispatchers_of_a_moved_store_are_refused(tmp_path):
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put_many([cystore.Message(topic="T", body=b"x")] * 3)
        consumer, dispatcher = store.consumer("G", "T"), store.dispatchers.add("d", lambda messages: None)
        (first,) = consumer.poll(1, 60)
        assert dispatcher.wait(60)
        elsewhere = moved(path)
        due(store)
        calls = (
            consumer.poll, lambda: consumer.ack(first), lambda: consumer.retry(first), dispatcher.wait,
            lambda: dispatcher.position, lambda: dispatcher.lag_bytes,
        )  # fmt: skip
        for call in calls:
            with pytest.raises(cystore.StoreMovedError):
                call()
        elsewhere.rename(path)
        assert consumer.ack(first) == 1 and len(consumer.poll(9, 60)) == 2
        store.put("T", b"back")
        assert dispatcher.wait(60)
        consumer.close()
        dispatcher.close()


@pytest.mark.parametrize("wait", ["wait", "wait_log", "wait_key", "poll", "aio"])
def test_a_wait_ends_when_the_store_is_moved(tmp_path, wait):
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"x")
        consumer = store.consumer("G", "U") if wait == "poll" else None
        waits = {
            "wait": lambda: store.wait("T", 0, 99, 300),
            "wait_log": lambda: store.wait_log(1 << 40, 300),
            "wait_key": lambda: store.wait_key("k", store.key_seen("k"), 300),
            "poll": lambda: consumer.poll(1, 300),
            "aio": lambda: asyncio.run(store.aio.wait("T", 0, 99, 300)),
        }
        errors = []

        def run():
            try:
                waits[wait]()
            except cystore.StoreError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        elsewhere = moved(path)
        thread.join(100)
        assert [type(error) for error in errors] == [cystore.StoreMovedError]
        elsewhere.rename(path)
        if consumer is not None:
            consumer.close()


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("change", EVERY)
def test_a_reading_handle_follows_its_path(place, change, attached):
    """Seen: it read the directory that was moved away, for ever, and never saw a new message."""
    writer = open_small(place)
    writer.put("T", b"before", keys=("k",))
    if not attached:
        writer.close()
    with open_small(place, read_only=True) as reader:
        get, query = reader.get, reader.query
        assert [bytes(m.body) for m in reader.get("T", 0, 0).messages] == [b"before"]
        EVERY[change](place)
        due(reader)
        if change in GONE:
            for call in (lambda: reader.get("T", 0, 0), lambda: reader.query("T", "k"), reader.topics):
                with pytest.raises(cystore.StoreMovedError):
                    call()
            if change == "emptied":
                place.rmdir()
            if not place.parent.exists():
                place.parent.mkdir()
            open_small(place).close()
        with open_small(place) as other:
            other.put("U", b"new", keys=("n",))
            assert bytes(reader.get("U", 0, 0).messages[0].body) == b"new"
            assert bytes(get("U", 0, 0).messages[0].body) == b"new"
            assert len(query("U", "n")) == len(reader.query("U", "n")) == 1
            assert reader.followed == 1
            other.put("U", b"newer", keys=("n",))
            assert len(get("U", 0, 0).messages) == 2
            assert list(reader.topics()) == [
                *(("T",) if change in THERE and change != "replaced" else ()),
                "U",
            ]
    left(writer)


def test_a_reader_that_waits_follows_its_path(tmp_path):
    path = tmp_path / "s"
    writer = open_small(path)
    writer.put("T", b"before", keys=("k",))
    with open_small(path, read_only=True) as reader:
        found = []
        woken, seen = threading.Event(), reader.key_seen("k")

        def wait_for_key():
            reader.wait_key("k", seen, 300)
            woken.set()

        threads = [
            threading.Thread(target=lambda: found.append(reader.wait("T", 0, 1, 300))),
            threading.Thread(target=wait_for_key),
        ]
        for thread in threads:
            thread.start()
        snapshot(path, path.with_name("backup"))
        path.rename(path.with_name("elsewhere"))
        path.with_name("backup").rename(path)
        with open_small(path) as other:
            other.put("T", b"after")
            for thread in threads:
                thread.join(100)
        assert found == [True] and woken.is_set()
    left(writer)


def test_a_writing_handle_may_follow_its_path(tmp_path):
    """As the store of a Celery app does. What it stores is in the directory that is at its path."""
    path = tmp_path / "s"
    store, follows = open_small(path, services=("flush", "reput")), []
    store.follow_path(lambda: follows.append(store.followed))
    put, put_many = store.put, store.put_many
    store.put("T", b"before")
    restored(path)
    due(store)
    assert put("T", b"1").queue_offset == 1
    put_many([cystore.Message(topic="T", body=b"2")])
    store.put("T", b"3", properties={"p": "v"})
    assert (store.followed, follows) == (1, [1])
    with open_small(path, read_only=True) as reader:
        found: list[bytes] = []
        while (result := reader.get("T", 0, len(found))).messages:  # a get may end where dispatch stands
            found += (bytes(message.body) for message in result.messages)
        assert found == [b"before", b"1", b"2", b"3"]
    moved_again = path.with_name("again")
    path.rename(moved_again)
    due(store)
    for _ in range(2):
        with pytest.raises(cystore.StoreMovedError):
            store.put("T", b"nowhere")
    assert not path.exists(), "a second store was made"
    moved_again.rename(path)
    assert store.put("T", b"4").queue_offset == 4
    store.close()
    for directory in (path, path.with_name("elsewhere")):  # both were left in order
        open_small(directory, exclusive=True).close()


def test_a_forked_child_does_not_write_into_another_directory(tmp_path):
    path = tmp_path / "s"
    store = open_small(path)
    store.put("T", b"x")
    restored(path)
    before = sorted(found.name for found in path.iterdir())

    def put():
        with pytest.raises(cystore.StoreMovedError):
            store.put("T", b"y")
        with pytest.raises(cystore.StoreMovedError):
            store.get("T", 0, 0)

    assert in_child(put) == 0
    assert sorted(found.name for found in path.iterdir()) == before
    left(store)


def test_a_tail_of_asyncio_follows_its_path(tmp_path):
    path = tmp_path / "s"
    writer = open_small(path)
    writer.put("T", b"0")
    snapshot(path, tmp_path / "backup")
    writer.put("T", b"1")
    seen = []

    async def tail(reader):
        async for message in reader.aio.tail("T", begin="first"):
            seen.append(bytes(message.body))
            if message.body == b"1":
                path.rename(path.with_name("elsewhere"))
                snapshot(tmp_path / "backup", path)
                with open_small(path) as other:
                    other.put("T", b"new")
            if message.body == b"new":
                return

    with open_small(path, read_only=True) as reader:
        asyncio.run(asyncio.wait_for(tail(reader), 100))
    assert seen == [b"0", b"1", b"new"]
    left(writer)
