"""Goal: an orderly close makes the log durable first, whatever state queues and index are in, and says what it could
not make durable. Method: damage, refused space and failing disks under a store that is closed."""

from __future__ import annotations

import errno
import os
import signal
import threading

import pytest

import cystore
from cystore.attachment import detach, interrupted_close
from cystore.attachment.attachment import Attachment
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.engine.files.segments import file_name
from cystore.engine.log import flush
from cystore.errors import FlushFailedError, NotDurableError, StoreFullError
from cystore.services.threads import ServiceThread
from cystore.system import files
from cystore.system.store_lock import StoreLocks
from cystore.system.threads import os_threads
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, body_for, open_small

pytestmark = pytest.mark.unsanitized  # about the order of closing

RECORD_BYTES = 400


def flip(path, physical_offset: int) -> None:
    """Flips bits of the byte at a physical offset, under live processes too."""
    base = physical_offset - physical_offset % LOG_BYTES
    segment = path / "commitlog" / file_name(base)
    with segment.open("r+b") as file:
        file.seek(physical_offset - base)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0xFF]))


def put_some(store, count: int = 200) -> list[cystore.PutResult]:
    return [store.put("T", body_for(RECORD_BYTES)) for _ in range(count)]


@pytest.mark.parametrize("damaged", [0, 20, 199])
@pytest.mark.parametrize("at", [0, 4, 100], ids=["size", "magic", "body"])
def test_damage_that_is_not_dispatched_does_not_stop_the_flush(tmp_path, damaged, at):
    """Seen: close gave up at the damaged record, the log was not flushed, and the next open cut all behind the old
    watermark."""
    store = open_small(tmp_path / "s")
    put = put_some(store)
    flip(store.path, put[damaged].physical_offset + at)
    store.close()
    last = put[-1] if damaged != 199 else put[-2]
    if damaged != 199:
        assert read_checkpoint(tmp_path / "s").watermark == last.physical_offset + last.size_bytes
    with open_small(tmp_path / "s") as store:
        there = {m.physical_offset for m in store.scan()}
        assert there == {one.physical_offset for one in put if one is not put[damaged]}
        again = store.put("T", b"new", flush="sync")
        assert again.queue_offset == 200 or damaged == 199


def test_queues_without_space_do_not_stop_the_flush(tmp_path, monkeypatch):
    """A full disk has no room for queue entries; the log has its room already."""
    store = open_small(tmp_path / "s")
    put = put_some(store)

    def refuse(self, position):
        raise StoreFullError("no space left", path=self.files.directory)

    with monkeypatch.context() as full:
        full.setattr(ConsumeQueue, "prepare", refuse)
        store.close()
    assert read_checkpoint(tmp_path / "s").watermark == put[-1].physical_offset + put[-1].size_bytes
    with open_small(tmp_path / "s") as store:
        assert len(store.get("T", 0, 0, 32).messages) == 32
        assert store.topics()["T"][0].max_offset == 200


def test_queues_that_come_to_harm_do_not_stop_the_flush(tmp_path, monkeypatch):
    """Whatever goes wrong with the derived files: the log is durable, and the next open heals the rest."""
    store = open_small(tmp_path / "s")
    put = put_some(store)

    def harm(self, position):
        raise RuntimeError("not of this tree of errors")

    with monkeypatch.context() as harmed:
        harmed.setattr(ConsumeQueue, "prepare", harm)
        store.close()
    assert (tmp_path / "s" / "abort").exists()
    assert read_checkpoint(tmp_path / "s").watermark == put[-1].physical_offset + put[-1].size_bytes
    with open_small(tmp_path / "s") as store:
        assert store.topics()["T"][0].max_offset == 200


@pytest.mark.parametrize("known", [True, False])
def test_what_ends_a_dispatch_at_the_close_is_one_line_if_it_is_known(tmp_path, monkeypatch, caplog, known):
    """Seen: on a full disk each close logged sixty lines."""

    def refuse(self, position):
        raise StoreFullError("no space left") if known else RuntimeError("not of this tree of errors")

    store = open_small(tmp_path / "s")
    store.put("T", b"x")
    with monkeypatch.context() as full:
        full.setattr(ConsumeQueue, "prepare", refuse)
        store.close()
    assert ("no space left" if known else "not of this tree") in caplog.text
    assert ("Traceback" in caplog.text) is not known


def test_close_says_what_is_not_durable_after_it_let_go(tmp_path, monkeypatch):
    """Seen: close ended as if all was well. It lets go of everything all the same: the store can be opened at once."""
    store = open_small(tmp_path / "s")
    put_some(store, 10)
    with monkeypatch.context() as failing:

        def fail(self, position, timeout_ms=None):
            raise FlushFailedError("the disk failed", path="log") from OSError(errno.EIO, "gone")

        failing.setattr(type(store._parts.flusher), "flush_to", fail)
        with pytest.raises(NotDurableError, match=r"the log from 0 to 4000.*the disk failed") as caught:
            store.close()
    assert isinstance(caught.value.__cause__, FlushFailedError)
    assert store.closed
    store.close()  # twice is fine
    assert (tmp_path / "s" / "abort").exists()
    with open_small(tmp_path / "s", exclusive=True) as store:
        assert len(list(store.scan())) == 10


def test_an_error_inside_a_with_block_is_not_replaced_by_that_of_close(tmp_path, monkeypatch):
    def fail(self, position, timeout_ms=None):
        raise FlushFailedError("the disk failed", path="log")

    store = open_small(tmp_path / "s")
    put_some(store, 10)
    monkeypatch.setattr(type(store._parts.flusher), "flush_to", fail)
    with pytest.raises(ZeroDivisionError), store:
        raise ZeroDivisionError
    assert store.closed


def test_next_offsets_that_cannot_be_saved_are_told(tmp_path, monkeypatch):
    """Recovery counts them from the log; of a queue whose messages are all gone only the table knows."""
    store = open_small(tmp_path / "s")
    put_some(store, 10)

    def refuse(*_, **__):
        raise StoreFullError("no space left", path="config")

    with monkeypatch.context() as full:
        full.setattr(files, "write_whole", refuse)
        store.close()
    with open_small(tmp_path / "s") as store:
        assert store.topics()["T"][0].max_offset == 10


OPEN = "import cystore; store = cystore.open(path, services='none', sync_flush_timeout_ms=limit_ms)"


@pytest.mark.parametrize("stays", ["reader", "writer"])
def test_a_writer_that_closes_beside_others_makes_the_log_durable(tmp_path, stays):
    """Seen: only the last handle of all flushed the log. A writer that closed while a reader stayed left it to the
    kernel: the durable watermark of the checkpoint stood at 0."""
    path = tmp_path / "s"
    with open_small(path) as store, Process() as other:
        other.do(OPEN, path=str(path), limit_ms=5000)
        if stays == "reader":
            other.do("store.close(); store = cystore.open(path, read_only=True)")
        put = put_some(store, 10)
        assert read_checkpoint(path).watermark == 0
        store.close()
        assert read_checkpoint(path).watermark == put[-1].physical_offset + put[-1].size_bytes
        assert other.do("len(list(store.scan()))") == 10


def test_a_writer_that_closes_beside_a_stopped_flush_says_what_is_not_durable(tmp_path):
    """The wait is bounded, and the store is let go of all the same."""
    path = tmp_path / "s"
    with open_small(path) as store, Process() as stopped, Process() as writer:
        for process in (stopped, writer):
            process.do(OPEN, path=str(path), limit_ms=100)
        stopped.do("turn = store._parts.control.held('flush'); turn.__enter__(); None")
        writer.do("put = [store.put('T', b'x') for _ in range(10)]; None")
        os.kill(stopped.pid, signal.SIGSTOP)
        with pytest.raises(
            Failed, match=r"NotDurableError.*the log from 0 to \d+ may not be on the disk.*flushing"
        ):
            writer.do("store.close()")
        assert writer.do("store.closed")
        writer.do(OPEN, path=str(path), limit_ms=5000)
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.do("turn.__exit__(None, None, None); None")
        writer.do("store.close()")
        assert read_checkpoint(path).watermark == store.wrote_position


class Waits:
    """The control block of a flusher, whose waits take no time: each moves a clock on. The first one waits for the
    close."""

    def __init__(self, control) -> None:
        self._control, self.now_s, self.count = control, 0.0, 0
        self.begun, self.closing = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._control, name)

    def wait_flush(self, seen, timeout_ms) -> None:
        """For the log's last page to fill up."""
        self.now_s += timeout_ms / 1000

    def flush_turn(self, position, within_ms):
        self.begun.set()
        self.closing.wait()
        self.now_s += within_ms / 1000
        self.count += 1
        return self._control.flush_turn(position, 0)


def test_close_waits_once_for_a_stopped_flush(tmp_path, monkeypatch):
    """Seen: close waited sync_flush_timeout_ms for its own thread, which waited for the flush of a stopped process,
    and then once more."""
    path = str(tmp_path / "s")
    settings = {"services": ("flush",), "flush_interval_commit_log_ms": 10, "sync_flush_timeout_ms": 1_000}
    with Process() as stopped:
        stopped.do(OPEN, path=path, limit_ms=100)
        stopped.do("turn = store._parts.control.held('flush'); turn.__enter__(); None")
        store = cystore.open(path, flush_commit_log_least_pages=0, **settings)
        flusher = store._parts.flusher
        waits = flusher._control = Waits(flusher._control)
        for module in (flush, interrupted_close, detach):
            monkeypatch.setattr(module, "monotonic_s", lambda: waits.now_s)
        stop = ServiceThread.stop
        monkeypatch.setattr(ServiceThread, "stop", lambda self: (stop(self), waits.closing.set()))
        store.put("T", b"x")
        waits.begun.wait()
        with pytest.raises(NotDurableError):
            store.close()
        assert 10 <= waits.count <= 12  # of 100 ms
        stopped.do("turn.__exit__(None, None, None); None")


def test_a_durable_store_that_was_moved_closes(tmp_path, caplog):
    """Seen: NotDurableError about an empty range, with a traceback in the log."""
    store = open_small(tmp_path / "s")
    store.put("T", b"x", flush="sync")
    os.rename(tmp_path / "s", tmp_path / "away")
    store.close()
    assert "the log is durable" in caplog.text and "Traceback" not in caplog.text
    with open_small(tmp_path / "away") as store:
        assert len(store.get("T", 0, 0).messages) == 1


@pytest.mark.parametrize("lock", ["clean", "dispatch", "manifest"])
def test_close_waits_for_a_turn_of_another_thread(tmp_path, monkeypatch, lock):
    """Seen: a handler closed the store inside of `clean`. The thread that made the turn was between the manifest and
    the word that tells others of it, and found the store closed; another process could have had it by then."""
    with open_small(tmp_path / "s"):
        store = open_small(tmp_path / "s")
        control, inside, go, seen = store._parts.control, threading.Event(), threading.Event(), []

        def turn() -> None:
            with control.held(lock):
                inside.set()
                go.wait()
                seen.append(control.closed)

        thread = threading.Thread(target=turn)
        thread.start()
        inside.wait()
        pause = os_threads.pause
        monkeypatch.setattr(os_threads, "pause", lambda seconds: (go.set(), pause(seconds)))
        store.close()
        go.set()
        thread.join()
        assert seen == [False]


@pytest.mark.parametrize("lock", ["clean", "dispatch", "deliver"])
def test_store_is_not_let_go_under_a_turn_that_began_after_the_last_look(tmp_path, monkeypatch, lock):
    """An interrupted call has the parts of the store and begins one more turn: until it ends, no other process may be
    alone in the store."""
    store = open_small(tmp_path / "s", services="none")
    store.put("T", b"x")
    parts, looks = store._parts, []
    begun, end, waits, closed = (threading.Event() for _ in range(4))
    await_turns, pause = Attachment.await_turns, os_threads.pause

    def turn():
        with parts.control.held(lock):
            begun.set()
            end.wait()

    def looked(attachment):
        await_turns(attachment)
        looks.append(1)
        if len(looks) == 2:
            threading.Thread(target=turn, daemon=True).start()
            begun.wait()

    def paused(seconds):
        if begun.is_set():
            waits.set()
        pause(seconds)

    monkeypatch.setattr(Attachment, "await_turns", looked)
    monkeypatch.setattr(os_threads, "pause", paused)
    closing = threading.Thread(target=lambda: (store.close(), closed.set(), waits.set()), daemon=True)
    closing.start()
    try:
        assert waits.wait(20)
        assert not closed.is_set()
        with pytest.raises(cystore.StoreClosedError), parts.control.held("manifest"):
            pass
        locks = StoreLocks(store.path, read_only=False)
        try:
            assert not locks.try_alone()
        finally:
            locks.close()
    finally:
        end.set()
        closing.join()
    with open_small(tmp_path / "s", exclusive=True) as again:
        assert not again.recovery.abnormal
