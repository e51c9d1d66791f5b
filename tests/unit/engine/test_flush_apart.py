"""Goal: the log is flushed in time whatever queues and index cost, one process does what all need, and idle processes
sleep. Method: queue flushes that stand still, file systems whose sync fails, several processes, and a wait whose
parts are watched."""

from __future__ import annotations

import errno
import threading

import pytest

import cystore
from cystore.derived.files import consume_queue
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.engine.files.checkpoint import Checkpoint, read_checkpoint
from cystore.engine.log import flush
from cystore.errors import StoreMovedError, StoreTimeoutError, SyncFailedError
from cystore.services.service_waits import (
    LITTLE_BYTES,
    LITTLE_OF_OTHERS_BYTES,
    LOOK_S,
    NAP_S,
    SLEEP_MS,
    SPECTATOR_S,
    AppendWait,
    QuietWait,
    Sleepers,
)
from cystore.system.file_system import FileSystem, tells_errors
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

pytestmark = [pytest.mark.disk, pytest.mark.unsanitized]  # about threads and intervals

QUICK = {"services": ("flush",), "flush_interval_commit_log_ms": 10, "flush_interval_consume_queue_ms": 10,
         "flush_commit_log_least_pages": 0}  # fmt: skip


def test_the_log_is_flushed_while_a_flush_of_queues_stands_still(tmp_path, monkeypatch):
    """Seen: the oldest byte that was not durable was 3.9 s old with an interval of 500 ms, because queues were
    flushed between."""
    begun, go_on = threading.Event(), threading.Event()
    with open_small(tmp_path / "s", **QUICK) as store:
        queues = store._attached().queues
        flush_queues = queues.flush

        def slow():
            begun.set()
            go_on.wait()
            flush_queues()

        monkeypatch.setattr(queues, "flush", slow)
        store.put("T", b"1")
        store.dispatch()
        begun.wait()
        control = store._attached().control
        for _ in range(3):
            put = store.put("T", b"2")
            end = put.physical_offset + put.size_bytes
            while control.flushed < end:
                control.wait_flush(control.flush_seq, 1000)
        assert read_checkpoint(store.path).watermark >= end
        go_on.set()


def test_one_process_flushes_queues_and_others_leave_it_to_them(tmp_path):
    with open_small(tmp_path / "s") as store, Process() as other:
        store.put("T", b"1", flush="sync")
        store.dispatch()
        other.do(
            "import cystore; store = cystore.open(path, **settings); parts = store._attached(); "
            "turn = parts.control.held('sync'); turn.__enter__()",
            path=str(store.path),
            settings={**SETTINGS, "flush_interval_consume_queue_ms": 1},
        )
        parts = store._attached()
        parts.derived_flusher._control.queues_flushed_ms = 0
        assert parts.derived_flusher.run_once().done == 0
        assert parts.control.index_flushed == 0
        other.do("turn.__exit__(None, None, None)")
        assert parts.derived_flusher.run_once().done > 0
        assert other.do("parts.derived_flusher.run_once().done") == 0  # nothing is left


def test_a_flush_that_was_asked_for_says_who_it_waits_for(tmp_path):
    with open_small(tmp_path / "s", sync_flush_timeout_ms=150) as store, Process() as other:
        store.put("T", b"1")
        store.dispatch()
        other.do(
            "import cystore; store = cystore.open(path, **settings); parts = store._attached(); "
            "turn = parts.control.held('sync'); turn.__enter__()",
            path=str(store.path),
            settings=SETTINGS,
        )
        with pytest.raises(StoreTimeoutError, match=f"the sync lock is held by thread {other.pid}"):
            store.flush()
        assert store.stats()["flushed"] == store.wrote_position  # the log does not wait
        other.kill()
        store.flush()


def test_the_checkpoint_is_synced_by_one_process(tmp_path, monkeypatch):
    """Seen: each of the attached processes synced the same checkpoint again."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"1", flush="sync")
        flusher = store._attached().flusher
        flusher._control.checkpointed_ms = 0
        synced = []
        sync = Checkpoint.sync
        monkeypatch.setattr(Checkpoint, "sync", lambda self: (synced.append(self), sync(self)))
        with open_small(tmp_path / "s") as second:
            for one in (store, second, store, second):
                one._attached().flusher.run_once()
            assert len(synced) == 1
            assert flusher.idle


def test_the_age_of_a_flush_counts_from_its_beginning(tmp_path, monkeypatch):
    """A record that is appended while the disk works is not durable: it is as old as the flush when that ends."""
    now_ms = [50_000]
    monkeypatch.setattr(flush, "_now_ms", lambda: now_ms[0])
    with open_small(tmp_path / "s") as store:
        flusher = store._attached().flusher
        store_watermark = flusher._store_watermark

        def slow(watermark):
            now_ms[0] += 700
            store_watermark(watermark)

        monkeypatch.setattr(flusher, "_store_watermark", slow)
        store.put("T", b"1", flush="sync")
        assert now_ms[0] == 50_700
        assert flusher._control.flushed_ms == 50_000


@pytest.fixture
def many(monkeypatch):
    """Ten queues are many."""
    monkeypatch.setattr(consume_queue, "MANY_DIRTY", 10)


def flushed_offsets(store) -> set[int]:
    control = store._attached().control
    return {control.queue_flushed(slot) for slot in range(control.queue_count)}


@pytest.mark.skipif(not tells_errors(), reason="the kernel does not tell what syncfs could not write")
def test_many_queues_are_synced_together(tmp_path, monkeypatch, many):
    with open_small(tmp_path / "s") as store:
        for queue_id in range(20):
            store.put("T", b"", queue_id=queue_id)
        store.dispatch()

        def one_by_one(self):
            raise AssertionError("a sync of its own")

        with monkeypatch.context() as counted:
            counted.setattr(ConsumeQueue, "flush", one_by_one)
            store.flush()
        assert flushed_offsets(store) == {1}


def test_a_sync_of_the_file_system_that_fails_says_nothing_of_our_files(tmp_path, monkeypatch, many):
    """Other programs' files may be meant: each queue is synced by itself then, and says what became of it."""

    def fail(self):
        raise SyncFailedError.of(errno.EIO, tmp_path)

    monkeypatch.setattr(FileSystem, "sync", fail)
    with open_small(tmp_path / "s") as store:
        for queue_id in range(20):
            store.put("T", b"", queue_id=queue_id)
        store.dispatch()
        store.flush()
        assert flushed_offsets(store) == {1}
        store.put("T", b"", flush="sync")


class Watched:
    """A control block and a flag that note what is waited for."""

    def __init__(self) -> None:
        self.append_seq, self.dispatched, self.wrote = 7, 0, 0
        self.waits, self.stopped = [], False

    def wait_append(self, seen, timeout_ms):
        self.waits.append(("append", seen, timeout_ms))
        self.wrote += 1  # somebody appends

    def quiet_wait(self, idle, due=None, slow_s=0.0, spectates=lambda: False):
        return QuietWait(self, Sleepers(self), lambda: None, idle, self, due, slow_s, spectates)

    def wait(self, interval_s):
        self.waits.append(("interval", interval_s))

    def is_set(self):
        return self.stopped


def test_a_service_without_work_sleeps_until_the_next_append(monkeypatch):
    """Seen: 50 wake-ups a second in each of a hundred idle processes."""
    from cystore.services import service_waits as module

    now, idle = [0.0], [True]
    monkeypatch.setattr(module, "monotonic_s", lambda: now[0])
    watched = Watched()
    wait = watched.quiet_wait(lambda: idle[0])
    wait(0.02)
    now[0] = 1.0
    wait(0.02)
    assert watched.waits == [("interval", 0.02), ("append", 7, SLEEP_MS)]
    watched.append_seq = 8  # somebody appends
    wait(0.02)
    now[0] = 2.5
    idle[0] = False  # something is not durable yet
    wait(0.02)
    assert watched.waits[2:] == [("interval", 0.02)] * 2
    now[0], idle[0] = 10.0, True
    watched.stopped = True
    wait(0.02)
    assert len(watched.waits) == 4


def test_much_that_is_not_durable_does_not_wait_for_the_interval(tmp_path):
    """Seen: puts of 140 MiB a second left 70 MiB for one flush; the oldest byte was 2 to 3 intervals old when the
    disk had them."""
    settings = {"flush_interval_commit_log_ms": 3_600_000, "mapped_file_size_commit_log_bytes": 64 << 20}
    with cystore.open(tmp_path / "s", services=("flush",), **settings) as store:
        control = store._attached().control
        for _ in range(2):
            for _ in range(5):
                end = store.put("T", bytes(4_000_000))
            end = end.physical_offset + end.size_bytes
            for _ in range(20):
                seen = control.flush_seq
                if control.flushed >= end:
                    break
                control.wait_flush(seen, 3_000)
            assert control.flushed >= end


def test_a_service_looks_whether_its_work_is_due(monkeypatch):
    from cystore.services import service_waits as module

    now, due = [0.0], [False, False, True]
    monkeypatch.setattr(module, "monotonic_s", lambda: now[0])
    watched = Watched()

    def wait(interval_s):
        watched.waits.append(interval_s)
        now[0] += interval_s

    watched.wait = wait
    quiet = watched.quiet_wait(lambda: False, lambda: due.pop(0))
    quiet(0.5)
    assert watched.waits == [LOOK_S] * 3
    due[:] = [False] * 3
    quiet(LOOK_S * 2.5)
    assert watched.waits[3:] == [LOOK_S, LOOK_S, pytest.approx(LOOK_S / 2)]


def test_a_service_of_a_process_that_does_not_append_turns_seldom(monkeypatch):
    """Seen: 30 wake-ups a second in each process that waits for results of others."""
    from cystore.services import service_waits as module

    monkeypatch.setattr(module, "monotonic_s", lambda: 0.0)
    watched, spectates = Watched(), [True]
    quiet = watched.quiet_wait(lambda: False, lambda: True, 0.1, lambda: spectates[0])
    quiet(0.02)
    watched.wrote += LITTLE_OF_OTHERS_BYTES - 1
    quiet(0.02)
    assert watched.waits == [("interval", SPECTATOR_S)] * 2
    watched.wrote += LITTLE_OF_OTHERS_BYTES  # perhaps by processes without services
    quiet(0.02)
    spectates[0] = False
    watched.waits.append("appends")
    quiet(0.02)
    assert watched.waits[2:] == [("interval", 0.02), "appends", ("interval", LOOK_S)]
    flushes = watched.quiet_wait(lambda: False, lambda: True, spectates=lambda: True)
    flushes(0.2)
    assert watched.waits[-1] == ("interval", 0.2)


def test_a_process_spectates_while_others_append(tmp_path):
    with cystore.open(tmp_path / "s", services="none") as store, Process() as other:
        other.do("import cystore")
        other.do(f"store = cystore.open({str(tmp_path / 's')!r}, services='none')")
        other.do("store.put('T', b'x')")
        assert store._attached().allocator.spectates
        store.put("T", b"x")
        assert not store._attached().allocator.spectates


def test_a_process_that_appends_without_pages_ahead_does_not_spectate(tmp_path):
    """Seen: its services looked seldom whether their work is due."""
    with cystore.open(tmp_path / "s", services="none", populate_ahead_bytes=0) as store:
        store.put("T", b"x")
        assert not store._attached().allocator.spectates


def test_an_idle_thread_that_dispatches_sleeps_until_the_next_append():
    """Seen: four wake-ups a second in each idle process that runs the service "reput"."""
    watched = Watched()
    watched.dispatched = watched.wrote = 10
    wait = AppendWait(watched, Sleepers(watched), lambda: None, watched)
    wait(0.25)
    nap = ("interval", NAP_S)  # while appends continue, they need not wake it
    assert watched.waits == [nap, ("append", 7, SLEEP_MS)]
    watched.wrote = 20  # not dispatched yet
    wait(0.25)
    watched.wrote, watched.stopped = 10, True
    wait(0.25)
    assert watched.waits[2:] == [nap, nap]


def test_a_service_that_looks_often_does_so_while_much_is_appended():
    """Seen: 50 turns a second in each process of a fleet that appended 1 MB/s."""
    watched = Watched()
    wait = watched.quiet_wait(lambda: False, slow_s=0.1)
    for appended in (LITTLE_BYTES - 1, LITTLE_BYTES, 10 * LITTLE_BYTES, 0):
        watched.append_seq, watched.wrote = watched.append_seq + 1, watched.wrote + appended
        wait(0.02)
    assert watched.waits == [("interval", interval_s) for interval_s in (0.1, 0.02, 0.02, 0.1)]


def threads_asleep(store):
    """The number of a store's threads that sleep until an append: the watching one, and those that it rings for."""
    sleepers = store._attached().sleepers
    return sleepers._watched + len(sleepers._rings)


def test_one_thread_of_an_idle_process_sleeps_on_the_store_and_rings_for_the_others(tmp_path, monkeypatch):
    """Seen: three wake-ups every two seconds in each process of an idle worker."""
    from cystore.services import service_waits as module

    monkeypatch.setattr(module, "QUIET_S", 0.0)
    rung = threading.Event()
    services = ("flush", "allocate", "reput")
    with open_small(tmp_path / "s", **{**QUICK, "services": services}) as store:
        sleepers = store._attached().sleepers
        for number in range(3):
            end = store.put("T", b"1")
            for _ in range(3000):
                if threads_asleep(store) == 4:
                    break
                threading.Event().wait(0.01)
            assert sleepers._watched and len(sleepers._rings) == 3  # "flush" has two threads
            assert store.wrote_position == end.physical_offset + end.size_bytes
            assert store.ring_at_append(rung.set)
            assert not rung.is_set()
            store.put("T", b"2")
            assert rung.wait(30), number
            rung.clear()


def test_nobody_rings_where_no_thread_sleeps(tmp_path):
    with cystore.open(tmp_path / "s", services=()) as store:
        assert not store.ring_at_append(lambda: None)
        assert not store.ring_at_append(lambda: None)


def test_whoever_watches_looks_around_and_rings_when_that_fails():
    """A store that was moved: each thread is to find out."""
    watched, rung = Watched(), []
    watched.wait_append = lambda seen, timeout_ms: None
    sleepers = Sleepers(watched)

    def look_around():
        assert sleepers.ring(lambda: rung.append(1))
        raise StoreMovedError("moved")

    for _ in range(2):
        with pytest.raises(StoreMovedError):
            sleepers.sleep(watched.append_seq, watched, look_around)
    assert rung == [1, 1]


def test_an_append_that_comes_before_the_bell_is_not_slept_through():
    watched = Watched()
    sleepers = Sleepers(watched)
    assert not sleepers.ring(lambda: None)  # somebody watches from now on
    sleepers.sleep(watched.append_seq - 1, watched, lambda: None)


def test_an_append_of_a_process_that_was_killed_before_it_woke_anybody_is_found():
    watched = Watched()
    Sleepers(watched).sleep(watched.append_seq, watched, lambda: None)  # `wrote` moves, `append_seq` does not
    assert watched.waits == [("append", 7, SLEEP_MS)]
