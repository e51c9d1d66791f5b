"""Goal: a store that is closed, forked, or whose locks somebody holds harms nobody: typed errors, bounded waits, no
lock left behind. Method: each method of a closed store, children forked in every state, and processes that stand
still."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from pathlib import Path

import pytest

import cystore
from cystore.derived.reading import dispatch_help
from cystore.errors import (
    PageCacheBusyError,
    StoreClosedError,
    StoreLockedError,
    StoreNotWritableError,
)
from tests.support.child import in_child
from tests.support.small_stores import open_small
from tests.unit.attachment.test_store import bodies, joined


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def store(path):
    with open_small(path) as store:
        yield store


# ------------------------------------------------------------------------------------------------------- closed


def test_every_method_of_a_closed_store_is_refused(path):
    store = open_small(path)
    store.put("T", b"")
    put, put_many = store.put, store.put_many
    store.close()
    given = {
        "put": ("T", b""),
        "put_once": ("T", b""),
        "put_many": ([cystore.Message(topic="T", body=b"")],),
        "get": ("T", 0, 0),
        "query": ("T", "k"),
        "query_many": ("T", ["k"]),
        "read": (0,),
        "message_ids": ("T", 0, 0, 9),
        "is_in_disk": ("T", 0, 0),
        "read_by_id": ("7F00000100002A9F0000000000000000",),
        "offset_by_time": ("T", 0, 0),
        "wait": ("T", 0, 0),
        "wait_log": (0,),
        "next_queue_offset": ("T", 0),
        "set_writable": (True,),
        "hold": ("archive", 0),
        "release": ("archive",),
        "delete_topic": ("T",),
        "ring_at_append": (lambda: None,),
        "key_seen": ("k",),
        "wait_key": ("k", 0),
        "wake_key": ("k",),
        "consumer": ("billing", "T"),
        "listen": ("T", lambda topic, queue_id, end: None),
        "begin": ("T", b""),
        "commit": ("id",),
        "rollback": ("id",),
        "latest": ("T", "k"),
        "compacted": ("T",),
        "cancel": ("T", "k"),
        "reschedule": ("T", "k", 1),
        "check_transactions": (lambda half, message: None,),
    }
    named = {"put_once": {"dedup_key": "k", "window_ms": 1}}
    harmless = {"close", "closed", "path", "config"}
    names = [name for name in dir(cystore.MessageStore) if not name.startswith("_") and name not in harmless]
    assert len(names) >= 14
    for name in names:
        with pytest.raises(StoreClosedError, match="closed"):
            getattr(store, name)(*given.get(name, ()), **named.get(name, {}))
    for bound in (lambda: put("T", b""), lambda: put_many(given["put_many"][0])):
        with pytest.raises(StoreClosedError):
            bound()
    with pytest.raises(StoreClosedError), store:
        store.put("T", b"")
    assert store.closed
    assert repr(store).endswith("closed>")
    store.close()


def test_iteration_that_was_begun_ends_with_the_store(path):
    store = open_small(path)
    store.put_many([cystore.Message(topic="T", body=bytes(3000))] * 20)
    scan = store.scan()
    next(scan)
    store.close()
    with pytest.raises(StoreClosedError):
        list(scan)


def test_views_stay_readable_after_close_and_after_the_file_is_gone(path):
    store = open_small(path)
    store.put("T", b"a body", keys=("k",), properties={"p": "v"})
    message = store.get("T", 0, 0).messages[0]
    body = message.body
    store.close()
    for file in sorted(path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    assert body == b"a body"
    assert (message.keys, message.properties["p"], message.topic) == (("k",), "v", "T")
    assert bytes(message.body[2:]) == b"body"


def test_close_waits_for_readers_in_other_threads_and_leaves_no_lock_behind(path):
    with open_small(path) as stays:
        stays.put_many([cystore.Message(topic="T", body=b"x", keys=("k",)) for _ in range(50)])
        for _ in range(10):
            store, refused = open_small(path), []

            def read(store=store, refused=refused) -> None:
                try:
                    while True:
                        stays.put("T", b"y", keys=("k",))
                        store.get("T", 0, 40)
                        store.query("T", "k")
                        store.flush()
                except StoreClosedError as error:
                    refused.append(error)

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            threads[0].join(0.01)
            store.close()
            for thread in threads:
                thread.join()
            assert len(refused) == 3
            assert [
                stays._parts.control.owner(name) for name in ("dispatch", "append", "housekeeping", "flush")
            ] == [0] * 4
        stays.dispatch()


def test_two_threads_close_one_store(path):
    store = open_small(path)
    threads = [threading.Thread(target=store.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.closed
    open_small(path, exclusive=True).close()


def test_with_block_closes_also_after_an_error(path):
    with pytest.raises(ZeroDivisionError), open_small(path) as store:
        raise ZeroDivisionError
    assert store.closed


# --------------------------------------------------------------------------------------------------------- fork


def test_a_child_takes_the_files_of_the_store_not_those_that_its_parent_suggested(path):
    """Seen: pool processes of a worker could not open a store that `cystore ha run` had made."""
    open_small(path).close()
    config = cystore.StoreConfig.from_mapping(
        {"services": "none"}, suggested={"mapped_file_size_consume_queue_bytes": 777 * 20}
    )
    with cystore.open(path, config=config) as store:
        assert in_child(lambda: store.put("T", b"child")) == 0
        assert bodies(store) == [b"child"]


def test_child_forked_before_any_use(store):
    assert in_child(lambda: store.put("T", b"child")) == 0
    store.put("T", b"parent")
    assert bodies(store) == [b"child", b"parent"]


def test_child_uses_what_the_parent_bound(store):
    put, get = store.put, store.get
    put("T", b"1")

    def work() -> None:
        assert put("T", b"2").queue_offset == 1
        assert len(get("T", 0, 0).messages) == 2
        assert put("T", b"3").queue_offset == 2

    assert in_child(work) == 0
    assert put("T", b"4").queue_offset == 3


def test_child_of_a_child(store):
    def work() -> None:
        store.put("T", b"child")
        assert in_child(lambda: store.put("T", b"grandchild")) == 0
        store.close()

    assert in_child(work) == 0
    assert bodies(store) == [b"child", b"grandchild"]


def test_child_of_a_closed_store_has_a_closed_store(path):
    store = open_small(path)
    store.close()

    def work() -> None:
        with pytest.raises(StoreClosedError):
            store.put("T", b"")

    assert in_child(work) == 0


def test_child_reads_the_parents_views(store):
    store.put("T", b"a view")
    message = store.get("T", 0, 0).messages[0]

    def work() -> None:
        store.put("T", b"more")
        assert message.body == b"a view"
        store.close()
        assert message.body == b"a view"

    assert in_child(work) == 0
    assert message.body == b"a view"


def test_child_closes_and_the_parent_goes_on(store):
    store.put("T", b"1")
    assert in_child(store.close) == 0
    with pytest.raises(StoreLockedError):
        open_small(store.path, exclusive=True)
    store.put("T", b"2")
    assert bodies(store) == [b"1", b"2"]


def test_child_outlives_its_parent(path, tmp_path):
    """The parent leaves first, as the last one that it knows of; the child has not used the store yet."""
    go, told = os.pipe(), os.pipe()
    store = open_small(path)
    store.put("T", b"parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.read(go[0], 1)
            store.put("T", b"child")
            store.close()
            code = 0
        finally:
            os._exit(code)
    store.close()
    assert not (path / "abort").exists()
    os.write(go[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (*go, *told):
        os.close(end)
    with open_small(path) as store:
        assert bodies(store) == [b"parent", b"child"]


def test_child_of_an_exclusive_store_is_refused_and_harms_nothing(path):
    with open_small(path, exclusive=True) as store:
        store.put("T", b"1")

        def work() -> None:
            with pytest.raises(StoreLockedError):
                store.put("T", b"2")

        assert in_child(work) == 0
        assert store.put("T", b"2").queue_offset == 1


def test_child_of_a_reader(path):
    with open_small(path) as writer, open_small(path, read_only=True) as reader:
        writer.put("T", b"1")
        writer.dispatch()

        def work() -> None:
            assert bodies(reader) == [b"1"]
            with pytest.raises(StoreNotWritableError):
                reader.put("T", b"")
            reader.close()

        assert in_child(work) == 0
        assert bodies(reader) == [b"1"]


def test_child_forked_while_other_threads_append(store):
    stop, puts = threading.Event(), []

    def put() -> None:
        while not stop.is_set():
            puts.append(store.put("T", b"parent").queue_offset)

    threads = [threading.Thread(target=put) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert in_child(lambda: (store.put("T", b"child"), store.get("T", 0, 0), store.close())) == 0
    stop.set()
    for thread in threads:
        thread.join()
    total = store.topics()["T"][0].max_offset
    assert total == len(puts) + 5
    assert len(set(puts)) == len(puts)


def test_child_forked_while_another_thread_keeps_a_mapping(store):
    """Seen: with a small budget of mapped bytes a child in about 40 stayed in `fork` for ever."""
    store.put("T", b"parent")
    mappings, held, done = store._attached().commit_log.files._mappings, threading.Event(), threading.Event()

    def hold() -> None:
        with mappings._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        ended = os.pidfd_open(child)
        with contextlib.closing(os.fdopen(ended, "rb")):
            assert select.select([ended], [], [], 30)[0], "the child does not come back from fork"
    finally:
        done.set()
        thread.join()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert bodies(store) == [b"parent"]


def test_child_forked_while_another_thread_opens_and_closes(tmp_path):
    """What the child inherits of a store that is just being opened would keep its lock for as long as the child
    lives."""
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            open_small(tmp_path / "s").close()

    thread = threading.Thread(target=open_and_close)
    thread.start()
    pipe = os.pipe()
    children = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os.close(pipe[1])
            os.read(pipe[0], 1)
            os._exit(0)
        children.append(child)
    stop.set()
    thread.join()
    try:
        open_small(tmp_path / "s", exclusive=True).close()
    finally:
        os.close(pipe[1])
        for child in children:
            os.waitpid(child, 0)
        os.close(pipe[0])


# -------------------------------------------------------------------------------------------------------- waits


def test_put_behind_a_stopped_process_is_refused_in_time_and_goes_on_after_it(path):
    with open_small(path, os_page_cache_busy_timeout_ms=300) as store, joined(path) as other:
        other.do("store.put('T', b'1'); turn = parts.control.held('append'); turn.__enter__()")
        other.stop()
        for put in (
            lambda: store.put("T", b"2"),
            lambda: store.put_many([cystore.Message(topic="T", body=b"2")]),
        ):
            with pytest.raises(PageCacheBusyError, match=f"thread {other.pid} has held the append lock"):
                put()
        with pytest.raises(PageCacheBusyError, match="for 50 ms"):
            store.put("T", b"2", busy_timeout_ms=50)
        for wrong in (-1, "1", 1.5):
            with pytest.raises(cystore.MessageIllegalError, match="busy_timeout_ms"):
                store.put("T", b"2", busy_timeout_ms=wrong)
        other.go_on()
        other.do("turn.__exit__(None, None, None)")
        assert store.put("T", b"2", busy_timeout_ms=50).queue_offset == 1


def test_reads_go_on_behind_a_stopped_appender(path):
    with open_small(path) as store, joined(path) as other:
        store.put("T", b"1", keys=("k",))
        other.do("turn = parts.control.held('append'); turn.__enter__()")
        other.stop()
        assert bodies(store) == [b"1"]
        assert len(store.query("T", "k")) == 1
        store.flush()
        assert store.stats()["flushed"] == store.stats()["wrote"]
        other.go_on()


def test_read_behind_a_stopped_dispatcher_gives_what_there_is(path, monkeypatch):
    monkeypatch.setattr(dispatch_help, "HELP_WAIT_MS", 100)
    with open_small(path) as store, joined(path) as other:
        store.put("T", b"1")
        assert bodies(store) == [b"1"]
        other.do("turn = parts.control.held('dispatch'); turn.__enter__()")
        other.stop()
        store.put("T", b"2")
        assert bodies(store) == [b"1"]
        assert store.stats()["dispatch_behind_bytes"] > 0
        other.go_on()
        other.do("turn.__exit__(None, None, None)")
        assert bodies(store) == [b"1", b"2"]


@pytest.mark.parametrize("first", [True, False], ids=["before the first put", "later"])
def test_put_that_waits_for_the_lock_can_be_broken_off(path, first):
    """Ctrl-C, which Python turns into KeyboardInterrupt; the store is as usable as before."""
    with open_small(path) as store, joined(path, os_page_cache_busy_timeout_ms=60_000) as other:
        if not first:
            other.do("store.put('T', b'1')")
        turn = store._parts.control.held("append")
        turn.__enter__()
        other.do("import signal, threading")
        other.send(
            "signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)\n"
            "def interrupt(*_): raise KeyboardInterrupt\n"
            "signal.signal(signal.SIGALRM, interrupt)\n"
            "try:\n"
            "    store.put('T', b'broken off')\n"
            "    outcome = 'put'\n"
            "except KeyboardInterrupt:\n"
            "    outcome = 'interrupted'\n"
            "signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "outcome"
        )
        assert other.answer() == "interrupted"
        turn.__exit__(None, None, None)
        assert other.do("store.put('T', b'2').queue_offset") == (0 if first else 1)
        assert other.do("store._parts.appender.active_calls") == 0


def test_waiting_reader_is_woken_by_an_append_of_another_process(path):
    with open_small(path) as store, joined(path) as other:
        store.put("T", b"0")
        other.send("store.wait('T', 0, 1, 60)")
        store.put("T", b"1")
        assert other.answer() is True
        assert other.do("store.wait('T', 0, 2, 0.01)") is False
        assert other.do("store.wait('U', 0, 0, 0.01)") is False
        other.send("store.wait('U', 3, 0)")
        store.put("U", b"", queue_id=3)
        assert other.answer() is True


def test_wait_ends_when_the_store_is_closed(path):
    store, outcome = open_small(path), []

    def wait() -> None:
        try:
            store.wait("T", 0, 0)
        except StoreClosedError:
            outcome.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    store.close()
    thread.join()
    assert outcome == ["closed"]


# ------------------------------------------------------------------------------------------------------ attaching


def test_directory_that_another_process_makes_meanwhile_is_no_obstacle(path, monkeypatch):
    original = Path.is_dir

    def made_after_the_look(self) -> bool:
        found = original(self)
        if self == path and not found:
            path.mkdir()
        return found

    monkeypatch.setattr(Path, "is_dir", made_after_the_look)
    with open_small(path) as store:
        store.put("T", b"")
