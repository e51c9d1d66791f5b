"""Goal: whatever happens around a put that waits in the kernel for a slave, it is acknowledged only when the slave has
it, and the store goes on. Method: a slave that stands still while the process forks, is interrupted, puts once more
from a signal's handler, or loses its epoch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

import cystore
from tests.support.ha.ha_pair import free_port, masters, slaves, until, wrote
from tests.support.process import Process

OPENED = "import cystore; store = cystore.open(path, **settings)"
LONG_MS = 60_000
WRITERS = 4


@pytest.fixture
def master(tmp_path) -> Iterator[cystore.MessageStore]:
    with cystore.open(tmp_path / "master", **masters(free_port(), slave_timeout_ms=LONG_MS)) as opened:
        yield opened


@pytest.fixture
def follower(master, tmp_path) -> Iterator[Process]:
    """A slave that follows, and stands still."""
    with Process() as process:
        port = master._attached().config.ha_listen_port
        process.do(OPENED, path=str(tmp_path / "slave"), settings=slaves(port))
        until(lambda: master._attached().control.replicas)
        master.put("T", b"names the segment", flush="sync")
        master.put("T", b"first", flush="replicated")
        process.stop()
        yield process
        process.go_on()


class Waiting:
    """Threads that put one message each, and wait for the slave."""

    def __init__(self, store: cystore.MessageStore, count: int = 1) -> None:
        self._store = store
        self.puts: list[cystore.PutResult] = []
        self.errors: list[cystore.StoreError] = []
        self._threads = [threading.Thread(target=self._put) for _ in range(count)]
        end = wrote(store)
        for thread in self._threads:
            thread.start()
        until(lambda: wrote(store) > end and store._attached().appender.active_calls >= count)

    def _put(self) -> None:
        try:
            self.puts.append(self._store.put("T", b"waits", flush="replicated"))
        except cystore.StoreError as error:
            self.errors.append(error)

    def end(self) -> None:
        for thread in self._threads:
            thread.join()


def interrupted_while_it_waits(store: cystore.MessageStore, signal_number: int) -> threading.Thread:
    """Starts a thread that sends this thread a signal as soon as it waits."""
    end = wrote(store)

    def interrupt() -> None:
        until(lambda: wrote(store) > end and store._attached().appender.active_calls)
        signal.pthread_kill(threading.main_thread().ident, signal_number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def slaves_end(follower: Process) -> int:
    return int(follower.do("store.stats()['wrote']"))


def test_a_child_puts_while_its_parent_waits(master, follower):
    waiting = Waiting(master, WRITERS)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if master.put("T", b"of the child", flush="sync").size_bytes else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert not waiting.puts
    assert not waiting.errors
    follower.go_on()
    waiting.end()
    assert len(waiting.puts) == WRITERS
    assert slaves_end(follower) >= max(put.physical_offset + put.size_bytes for put in waiting.puts)


def test_ctrl_c_ends_the_wait(master, follower):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    end = wrote(master)
    thread = interrupted_while_it_waits(master, signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            master.put("T", b"interrupted", flush="replicated")
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert bytes(master.read(end).body) == b"interrupted"
    follower.go_on()
    put = master.put("T", b"next", flush="replicated")
    assert slaves_end(follower) >= put.physical_offset + put.size_bytes


def test_a_handler_puts_and_waits_inside_of_a_wait(master, follower):
    inner: list[cystore.PutResult] = []

    def handler(*_: object) -> None:
        follower.go_on()
        inner.append(master.put("T", b"inner", flush="replicated"))

    before = signal.signal(signal.SIGUSR1, handler)
    thread = interrupted_while_it_waits(master, signal.SIGUSR1)
    try:
        outer = master.put("T", b"outer", flush="replicated")
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
    (put,) = inner
    assert outer.queue_offset + 1 == put.queue_offset
    assert slaves_end(follower) >= put.physical_offset + put.size_bytes


def test_the_puts_that_wait_when_the_epoch_ends_are_not_acknowledged(master, follower):
    """The new master of the group may not have them."""
    control = master._attached().control
    control.in_sync = control.in_sync_needed = 2
    control.lease_until_ms, control.epoch = 1 << 60, 7
    waiting = Waiting(master, WRITERS)
    control.epoch = 0
    waiting.end()
    assert not waiting.puts
    assert len(waiting.errors) == WRITERS
    for error in waiting.errors:
        assert isinstance(error, cystore.FlushSlaveTimeoutError)
        assert "may be cut" in str(error)
        assert len(error.results) == 1
    control.in_sync_needed = 0
