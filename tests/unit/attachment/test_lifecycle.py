"""Goal: whoever is interrupted, dropped or killed leaves nothing behind that others wait for. Method: exceptions and
calls out of signal handlers at places where something is held, objects that are dropped, killed sleepers, missing
threads; then another process looks."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys

import pytest

import cystore
from cystore.engine.files.progress import Progress
from cystore.engine.log.flush import Flusher
from cystore.services.threads import ServiceThread
from cystore.system.threads import os_threads
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about who is interrupted, not about kernels

OPEN = "import cystore; store = cystore.open(path, **settings)"


def check_nobody_has(path) -> None:
    """Another process gets the store for itself alone."""
    with Process() as other:
        other.do(OPEN, path=str(path), settings=SETTINGS | {"exclusive": True})
        assert other.do("cystore.__name__; store.close()") is None


@pytest.fixture
def at_signal():
    """Calls what it is given in a handler; `signal.raise_signal` runs it."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(call) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: call())

    yield handle
    signal.signal(signal.SIGUSR1, before)


def interrupt_in(monkeypatch, owner, name: str) -> list[int]:
    """A signal comes in the first call of a method."""
    real, seen = getattr(owner, name), []

    def interrupted(*arguments, **named):
        if not seen:
            seen.append(1)
            signal.raise_signal(signal.SIGUSR1)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, interrupted)
    return seen


# ------------------------------------------------------------------------------------------------------- dropped


@pytest.mark.parametrize(
    "services", [(), ("flush", "allocate"), ("flush", "allocate", "reput", "schedule", "clean")]
)
def test_a_store_that_is_dropped_is_left_and_its_threads_end(tmp_path, services):
    """It kept two threads, its descriptors and its lock until the end of the process."""
    store = open_small(tmp_path / "s", services=services)
    store.put("T", b"kept", flush="sync")
    threads, leaving = [thread._thread for thread in store._leaving._threads], store._leaving
    del store
    gc.collect()
    leaving.wait()
    assert all(thread.join(60) for thread in threads)
    check_nobody_has(tmp_path / "s")
    with open_small(tmp_path / "s") as again:
        assert bytes(again.get("T", 0, 0).messages[0].body) == b"kept"


def test_a_service_that_fails_is_reported_and_begins_again(caplog, monkeypatch):
    """An error that is none of the store's ended its thread without a word."""
    monkeypatch.setattr("cystore.services.threads.ERROR_INTERVAL_S", 0.001)
    again, calls = os_threads.Flag(), []

    def run_once() -> Progress:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError("unforeseen")
        again.set()
        raise cystore.StoreClosedError("over")

    with caplog.at_level(logging.ERROR, "cystore"):
        service = ServiceThread("test", run_once, 0.001)
        assert again.wait(60)
        service.join(60)
    assert "unforeseen" in caplog.text


def test_a_store_is_flushed_though_its_service_failed(tmp_path, caplog, monkeypatch):
    """Seen: after one error that was none of the store's nothing was flushed until somebody asked for it."""
    monkeypatch.setattr("cystore.services.threads.ERROR_INTERVAL_S", 0.001)
    real, calls = Flusher.run_once, []

    def run_once(self) -> Progress:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError("unforeseen")
        return real(self)

    monkeypatch.setattr(Flusher, "run_once", run_once)
    with (
        caplog.at_level(logging.ERROR, "cystore"),
        open_small(tmp_path / "s", services="flush", flush_interval_commit_log_ms=10,
                   flush_commit_log_least_pages=0) as store,
    ):  # fmt: skip
        control = store._attached().control
        put = store.put("T", b"x")
        while control.flushed < put.physical_offset + put.size_bytes:
            control.wait_flush(control.flush_seq, 1000)
    assert caplog.text.count("starting it again") == 1


@pytest.mark.parametrize("started", [0, 1])
def test_open_without_a_thread_leaves_nothing(tmp_path, monkeypatch, started):
    real, count = os_threads.start, []

    def start(*arguments) -> int:
        count.append(1)
        if len(count) > started:
            raise RuntimeError("can't start new thread")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os_threads, "start", start)
        with pytest.raises(cystore.StoreResourceError, match="can't start new thread") as raised:
            open_small(tmp_path / "s", services=("flush", "allocate"))
    assert raised.value.path == tmp_path / "s"
    check_nobody_has(tmp_path / "s")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.consumer("g", "T"),
        lambda store: store.dispatchers.add("d", len),
        lambda store: store.listen("T", len),
    ],
    ids=["consumer", "dispatcher", "listener"],
)
def test_no_room_for_a_thread_names_the_store(tmp_path, monkeypatch, call):
    """Seen: an operator of several stores was told which thread could not begin, and not for which store."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x", flush="sync")
        monkeypatch.setattr(os_threads, "start", lambda *_: (_ for _ in ()).throw(RuntimeError("no thread")))
        with pytest.raises(cystore.StoreResourceError, match="no room for the thread") as raised:
            call(store)
        assert raised.value.path == tmp_path / "s"
        monkeypatch.undo()


def test_close_without_a_thread_closes_all_the_same(tmp_path, monkeypatch):
    store = open_small(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(os_threads, "start", lambda *_: (_ for _ in ()).throw(RuntimeError("no thread")))
        store.close()
    check_nobody_has(tmp_path / "s")


ENDS_IN_THE_IMPORT = """
import importlib.abc, sys, threading
import cystore
inside = threading.Event()
class Holds(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("cystore.surface"):
            inside.set()
            threading.Event().wait()
sys.meta_path.insert(0, Holds())
threading.Thread(target=lambda: cystore.open(sys.argv[1]), daemon=True).start()
inside.wait()
"""


def test_an_end_in_the_first_open_says_nothing(tmp_path):
    """Seen: a worker that got SIGTERM while a thread opened its store printed an AttributeError."""
    command = [sys.executable, "-c", ENDS_IN_THE_IMPORT, str(tmp_path / "s")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_in_open_leaves_nothing(tmp_path, at_signal, monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_signal(interrupt)
    interrupt_in(monkeypatch, cystore.MessageStore, "_start")
    with pytest.raises(KeyboardInterrupt):
        open_small(tmp_path / "s")
    check_nobody_has(tmp_path / "s")


def test_an_interrupt_in_close_does_not_stop_it(tmp_path, at_signal, monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_signal(interrupt)
    store = open_small(tmp_path / "s")
    store.put("T", b"")
    interrupt_in(monkeypatch, store._leaving, "wait")
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    check_nobody_has(tmp_path / "s")
    assert not (tmp_path / "s" / "abort").exists()


# ------------------------------------------------------------------------------------------------------ re-entry


def test_close_in_a_handler_inside_of_a_put_takes_effect_when_the_put_ends(tmp_path, at_signal, monkeypatch):
    """It waited for the put below it on the same stack, for ever."""
    store = open_small(tmp_path / "s")
    at_signal(store.close)
    leaving = store._leaving
    interrupt_in(monkeypatch, store._parts.flusher, "_appended")
    store.put("T", b"kept", flush="sync")
    assert store.closed
    store.close()
    assert leaving.done
    with pytest.raises(cystore.StoreClosedError):
        store.put("T", b"")
    check_nobody_has(tmp_path / "s")


@pytest.mark.parametrize("call", ["get", "query", "flush", "clean", "dispatch"])
def test_close_in_a_handler_inside_of_another_call(tmp_path, at_signal, monkeypatch, call):
    store = open_small(tmp_path / "s")
    store.put("T", b"kept", keys=("k",))
    at_signal(store.close)
    interrupt_in(monkeypatch, store._parts.dispatcher if call != "flush" else store._parts.flusher,
                 "run_once" if call in ("get", "query") else "_begin" if call != "flush" else "_appended")  # fmt: skip
    arguments = {"get": ("T", 0, 0), "query": ("T", "k")}.get(call, ())
    try:
        getattr(store, call)(*arguments)
    except cystore.StoreClosedError:
        pass  # as when another thread closes
    assert store.closed
    store.close()
    check_nobody_has(tmp_path / "s")
    with open_small(tmp_path / "s") as again:
        assert len(again.query("T", "k")) == 1


def test_sync_put_in_a_handler_inside_of_a_flush_leads_by_itself(tmp_path, at_signal, monkeypatch):
    """It waited sync_flush_timeout_ms for its own thread."""
    with open_small(tmp_path / "s") as store:
        control, put = store._parts.control, []

        def put_sync() -> None:
            put.append(store.put("T", b"inner", flush="sync"))
            assert control.flushed >= put[0].physical_offset + put[0].size_bytes

        at_signal(put_sync)
        checkpoint = store._parts.checkpoint
        # Inside of the outer lead: it knows its target, and has it on the disk.
        interrupt_in(monkeypatch, store._parts.flusher, "_store_watermark")
        outer = store.put("T", b"outer", flush="sync")
        assert put
        assert put[0].physical_offset > outer.physical_offset
        assert control.flushed == checkpoint.watermark == put[0].physical_offset + put[0].size_bytes
        assert control.owner("flush") == 0


# ------------------------------------------------------------------------------------------------------- waiters


def test_a_killed_waiter_costs_one_wake(tmp_path):
    """It left a count behind: every later put of every process made a system call."""
    with open_small(tmp_path / "s") as store, Process() as other:
        control = store._parts.control
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.send("store.wait('T', 0, 0)")
        while not control.append_sleepers:
            os_threads.pause(0.001)
        other.kill()
        for _ in range(3):
            store.put("T", b"")
            assert control.append_sleepers == 0


def test_sleepers_are_woken(tmp_path):
    with open_small(tmp_path / "s") as store, Process() as other:
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        for n in range(20):
            other.send("store.wait('T', 0, n, 60)", n=n)
            store.put("T", b"")
            assert other.answer() is True
