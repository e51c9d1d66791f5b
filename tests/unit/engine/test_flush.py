"""Goal: a sync put returns only after a sync that covers it, one sync serves all who wait, and a failed one is never
repeated and believed (I3). Method: other processes that lead, die and stop while leading; syncs that are counted, and
one that fails."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading

import pytest

import cystore
from cystore.derived.files.offsets import QueueOffsets, read_queue_offsets, write_queue_offsets
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.errors import FlushFailedError, NotDurableError, StoreTimeoutError, SyncFailedError
from tests.support.process import Failed, Process, processes
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

pytestmark = pytest.mark.disk  # syncs last there

PAGE = os.sysconf("SC_PAGESIZE")
OPEN = "import cystore; store = cystore.open(path, **settings); parts = store._parts"


class Watched:
    """A mapped file whose syncs are counted, or fail."""

    def __init__(self, file, log: Log) -> None:
        self._file, self._log = file, log

    def __getattr__(self, name):
        return getattr(self._file, name)

    def sync_range(self, begin: int, end: int) -> None:
        self._log.synced.append((self._file.base + begin, self._file.base + end))
        if self._log.fails:
            raise SyncFailedError.of(errno.EIO, self._file.path)
        if self._log.gate is not None:
            self._log.gate.wait()
        self._file.sync_range(begin, end)

    def redirty(self, begin: int, end: int) -> None:
        self._log.redirtied.append((self._file.base + begin, self._file.base + end))
        self._file.redirty(begin, end)


class Log:
    """A store's calls on its segments."""

    def __init__(self, store, monkeypatch) -> None:
        self.synced: list[tuple[int, int]] = []
        self.redirtied: list[tuple[int, int]] = []
        self.fails = False
        self.gate: threading.Event | None = None
        files = store._parts.commit_log.files
        original = files.get

        def get(base: int):
            file = original(base)
            return None if file is None else Watched(file, self)

        # The flusher's way to the segments only: the kernel needs the real ones.
        flusher = store._parts.flusher
        flusher.commits.enabled = False  # the kernel's own syncs are in test_group_commit.py
        monkeypatch.setattr(flusher, "_commit_log", View(flusher._commit_log, get))


class View:
    """A commit log whose files are watched."""

    def __init__(self, commit_log, get) -> None:
        self.files = FilesView(commit_log.files, get)


class FilesView:
    def __init__(self, files, get) -> None:
        self._files, self.get = files, get

    def __getattr__(self, name):
        return getattr(self._files, name)


@pytest.fixture
def store(tmp_path):
    store = open_small(tmp_path / "s")
    yield store
    with contextlib.suppress(NotDurableError):  # of a test that lets a sync fail
        store.close()


@pytest.fixture
def log(store, monkeypatch):
    return Log(store, monkeypatch)


def flushed(store) -> int:
    return store.stats()["flushed"]


# --------------------------------------------------------------------------------------------------- sync put


def test_async_put_waits_for_nothing(store, log):
    store.put("T", b"")
    assert (flushed(store), log.synced) == (0, [])


def test_sync_put_returns_after_a_sync_that_covers_it(store, log):
    store.put("T", b"before")
    result = store.put("T", b"durable", flush="sync")
    end = result.physical_offset + result.size_bytes
    assert flushed(store) == end
    assert log.synced == [(0, end)]
    fields = read_checkpoint(store.path)
    assert (fields.watermark, fields.last_record) == (end, result.physical_offset)
    assert fields.last_record_checksum == store.read(result.physical_offset).body_crc
    assert fields.physic_timestamp == result.store_timestamp_ms


def test_setting_makes_every_put_sync_and_a_put_may_say_otherwise(tmp_path, monkeypatch):
    with open_small(tmp_path / "s", flush_disk_type="sync") as store:
        log = Log(store, monkeypatch)
        store.put("T", b"")
        store.put_many([cystore.Message(topic="T", body=b"")] * 5)
        assert flushed(store) == store.stats()["wrote"]
        assert len(log.synced) == 2
        store.put("T", b"", flush="async")
        assert len(log.synced) == 2


def test_batch_over_several_files_is_synced_file_by_file(store, log):
    results = store.put_many([cystore.Message(topic="T", body=body_for(6000))] * 5, flush="sync")
    assert [begin for begin, _ in log.synced] == [0, LOG_BYTES, 2 * LOG_BYTES]
    assert log.synced[0][1] == LOG_BYTES
    assert log.synced[-1][1] == flushed(store) == results[-1].physical_offset + 6000


def test_what_is_flushed_already_is_not_synced_again(store, log):
    result = store.put("T", b"", flush="sync")
    store._parts.flusher.flush_to(result.physical_offset + result.size_bytes)
    assert len(log.synced) == 1


def test_one_sync_serves_all_who_wait(store, log):
    """Group commit: while one leads, the others gather behind it."""
    log.gate = threading.Event()
    results = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(store.put("T", b"%d" % n, flush="sync")))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    while store.stats()["put_count"] < 8:
        threads[0].join(0.001)
    log.gate.set()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert 1 <= len(log.synced) <= 2
    assert flushed(store) == store.stats()["wrote"]


def test_group_commit_across_processes(store):
    """Counted where the system is asked: in all processes together far fewer syncs than puts.

    The disk is one that takes its time, and its first sync does not end before every thread has appended. On a fast
    disk and a busy machine one process was done before the next one began, and there was nothing to be gathered."""
    count = (
        "from cystore.system.threads import os_threads\n"
        "syncs = [0]\n"
        "def slow_disk():\n"
        "    while parts.control.put_count < 12: os_threads.pause(0.001)\n"
        "    os_threads.pause(0.005)\n"
        "class Counted:\n"
        "    def __init__(self, file): self.file = file\n"
        "    def __getattr__(self, name):\n"
        "        if name == 'sync_range':\n"
        "            syncs[0] += 1\n"
        "            slow_disk()\n"
        "        return getattr(self.file, name)\n"
        "from tests.unit.engine.test_flush import View\n"
        "get = parts.commit_log.files.get\n"
        "def counted(base):\n"
        "    file = get(base)\n"
        "    return None if file is None else Counted(file)\n"
        "parts.flusher._commit_log = View(parts.commit_log, counted)\n"
        "parts.flusher.commits.enabled = False\n"
        "import threading\n"
        "def put(): acks.extend(store.put('T', b'x', flush='sync').queue_offset for _ in range(40))\n"
        "acks, threads = [], [threading.Thread(target=put) for _ in range(4)]\n"
    )
    with processes(3) as several:
        for process in several:
            process.send(OPEN + "\n" + count, path=str(store.path), settings=SETTINGS)
        for process in several:
            process.answer()
        for process in several:
            process.send("for t in threads: t.start()\nfor t in threads: t.join()\n[acks, syncs[0]]")
        answers = [process.answer() for process in several]
    offsets = sorted(offset for acks, _ in answers for offset in acks)
    assert offsets == list(range(480))
    assert sum(syncs for _, syncs in answers) < 480 // 2
    assert flushed(store) == store.stats()["wrote"]


# ------------------------------------------------------------------------------------------------ failed syncs


def test_failed_sync_is_told_and_poisons_the_store_for_writing(store, log):
    kept = store.put("T", b"kept", flush="sync")
    log.fails = True
    with pytest.raises(FlushFailedError, match="Input/output error") as caught:
        store.put("T", b"in the log, but not durable", flush="sync")
    assert [r.queue_offset for r in caught.value.results] == [1]
    log.fails = False
    tries = len(log.synced)
    for put in (
        lambda: store.put("T", b""),
        lambda: store.put("T", b"", flush="sync"),
        lambda: store.put_many([cystore.Message(topic="T", body=b"")]),
        store.flush,
    ):
        with pytest.raises(FlushFailedError, match="read-only until every process has closed it"):
            put()
    assert len(log.synced) == tries
    assert flushed(store) == kept.physical_offset + kept.size_bytes
    assert [bytes(m.body) for m in store.get("T", 0, 0).messages] == [b"kept", b"in the log, but not durable"]


def test_failed_sync_in_one_process_stops_all_of_them(store, log):
    log.fails = True
    with Process() as other:
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.do("store.put('T', b'1')")
        with pytest.raises(FlushFailedError):
            store.put("T", b"2", flush="sync")
        with pytest.raises(Failed, match="FlushFailedError: the disk failed with Input/output error"):
            other.do("store.put('T', b'3')")
        assert other.do("len(store.get('T', 0, 0).messages)") == 2


def test_those_who_wait_for_a_sync_that_fails_are_told_too(store, log):
    log.gate, log.fails = threading.Event(), False
    errors = []

    def put() -> None:
        try:
            store.put("T", b"", flush="sync")
        except FlushFailedError as error:
            errors.append(error.results)

    original = Watched.sync_range

    def fail_behind_the_gate(self, begin, end):
        log.gate.wait()
        log.fails = True
        original(self, begin, end)

    Watched.sync_range = fail_behind_the_gate
    try:
        threads = [threading.Thread(target=put) for _ in range(5)]
        for thread in threads:
            thread.start()
        while store.stats()["put_count"] < 5:
            threads[0].join(0.001)
        log.gate.set()
        for thread in threads:
            thread.join()
    finally:
        Watched.sync_range = original
    assert len(errors) == 5
    assert len(log.synced) == 1


def test_store_with_a_failed_sync_is_not_closed_as_clean_and_opens_writable(tmp_path, monkeypatch):
    store = open_small(tmp_path / "s")
    store.put("T", b"1", flush="sync")
    log = Log(store, monkeypatch)
    log.fails = True
    with pytest.raises(FlushFailedError):
        store.put("T", b"2", flush="sync")
    with pytest.raises(NotDurableError):
        store.close()
    assert (tmp_path / "s" / "abort").exists()
    with open_small(tmp_path / "s") as store:
        assert store.put("T", b"3", flush="sync").queue_offset == 2
    assert not (tmp_path / "s" / "abort").exists()


# ------------------------------------------------------------------------------- leaders that die or stand still


def test_after_a_dead_leader_everything_since_the_last_flush_is_made_dirty_again(store, log):
    """Its sync may have failed and taken the only report of the error with it."""
    first = store.put("T", b"1", flush="sync")
    with Process() as leader:
        leader.do(OPEN, path=str(store.path), settings=SETTINGS)
        leader.do("store.put('T', b'2'); turn = parts.control.held('flush'); turn.__enter__()")
        leader.kill()
    second = store.put("T", b"3", flush="sync")
    end = second.physical_offset + second.size_bytes
    assert log.redirtied == [(first.size_bytes, end)]
    assert log.synced[-1] == (first.size_bytes, end)
    store.put("T", b"4", flush="sync")
    assert len(log.redirtied) == 1


def test_stopped_leader_is_reported_and_not_robbed(tmp_path):
    with open_small(tmp_path / "s", sync_flush_timeout_ms=200) as store, Process() as leader:
        leader.do(OPEN, path=str(store.path), settings=SETTINGS)
        leader.do("turn = parts.control.held('flush'); turn.__enter__()")
        leader.stop()
        with pytest.raises(
            StoreTimeoutError, match=f"not flushed after 200 ms; thread {leader.pid} is flushing"
        ) as caught:
            store.put("T", b"1", flush="sync")
        assert [r.queue_offset for r in caught.value.results] == [0]
        assert flushed(store) == 0
        leader.go_on()
        leader.do("turn.__exit__(None, None, None)")
        assert store.put("T", b"2", flush="sync").queue_offset == 1
        assert flushed(store) == store.stats()["wrote"]


def test_waiting_for_a_leader_can_be_broken_off(store):
    """Ctrl-C."""
    with Process() as other:
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.do("store.put('T', b'0')")  # makes the segment, which may take longer than the signal
        turn = store._parts.control.held("flush")
        turn.__enter__()
        other.do(
            "import signal\n"
            "class Interrupted(Exception): pass\n"
            "before = store.wrote_position\n"
            "def interrupt(*_):\n"
            "    if store.wrote_position > before:  # it has appended, so it waits\n"
            "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "        raise Interrupted\n"
            "signal.signal(signal.SIGALRM, interrupt)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)"
        )
        with pytest.raises(Failed, match="Interrupted"):
            other.do("store.put('T', b'1', flush='sync')")
        turn.__exit__(None, None, None)
        assert other.do("store.put('T', b'2', flush='sync').queue_offset") == 2


# ------------------------------------------------------------------------------------------- saved offsets


def test_offsets_are_saved_only_of_what_is_durable(store):
    """A queue that a power cut takes away must not go on counting behind messages that it never had."""
    store.put("T", b"1")
    store._parts.derived_flusher.save_queue_offsets()
    saved = read_queue_offsets(store.path)
    assert saved.next == {("T", 0): 1}
    assert saved.physical_offset <= flushed(store) == store.wrote_position


def test_a_flush_does_not_fail_because_somebody_makes_room(tmp_path, caplog):
    """All is durable by then but the table of next offsets, which the next flush writes."""
    caplog.set_level(logging.WARNING, "cystore")
    with open_small(tmp_path / "s", sync_flush_timeout_ms=1) as store, Process() as other:
        store.put("T", b"")
        other.do(
            "import cystore; store = cystore.open(path, **settings); control = store._attached().control; "
            "turn = control.held('clean'); turn.__enter__()",
            path=str(store.path),
            settings=SETTINGS,
        )
        store.flush()
        assert "saved later: the clean lock is held by thread" in caplog.text
        assert store.stats()["flushed"] == store.stats()["wrote"]
        assert read_queue_offsets(store.path).next == {}
        other.do("turn.__exit__(None, None, None)")
        store.flush()
        assert read_queue_offsets(store.path).next == {("T", 0): 1}


def test_older_offsets_do_not_replace_newer_ones(store, monkeypatch):
    """Another process put and saved while this one waited for its sync."""
    store.put("T", b"1")
    flusher = store._parts.flusher
    flush_to = flusher.flush_to

    def meanwhile(position):
        put = store.put("T", b"2")
        newer = QueueOffsets({("T", 0): 2}, {("T", 0): 0}, put.physical_offset + put.size_bytes)
        write_queue_offsets(store.path, newer)
        flush_to(position)

    monkeypatch.setattr(flusher, "flush_to", meanwhile)
    store._parts.derived_flusher.save_queue_offsets()
    assert read_queue_offsets(store.path).next == {("T", 0): 2}


@pytest.mark.parametrize("damaged", [False, True])
def test_offsets_of_a_log_that_was_cut_since_and_damaged_ones_are_replaced(store, damaged):
    write_queue_offsets(store.path, QueueOffsets({("T", 0): 7}, {("T", 0): 0}, 1 << 30))
    if damaged:
        (store.path / "config" / "queueOffset.json").write_bytes(b"{")
        (store.path / "config" / "queueOffset.json.bak").unlink(missing_ok=True)
    store.put("T", b"1")
    store._parts.derived_flusher.save_queue_offsets()
    assert read_queue_offsets(store.path).next == {("T", 0): 1}


# ---------------------------------------------------------------------------------------- how far is appended


def test_last_record_that_lags_behind_is_found_by_walking(store, log):
    """An append was killed between the wrote position and the note of its last record; nobody has repaired it yet."""
    results = store.put_many([cystore.Message(topic="T", body=body_for(3000))] * 12)
    control = store._parts.control
    for behind in (0, 3, 6, 10):
        control.last_record = results[behind].physical_offset
        assert store._parts.flusher._appended() == (control.wrote, results[-1].physical_offset)
    control.last_record = -1
    store.flush()
    assert flushed(store) == control.wrote
    assert read_checkpoint(store.path).last_record == results[-1].physical_offset


def test_log_that_ends_in_a_blank(store):
    """The blank is published by itself: the process may have been killed before the record behind it."""
    last = store.put("T", body_for(LOG_BYTES - 100))
    control = store._parts.control
    segment = store._parts.commit_log.files.get(0)
    segment.write(last.size_bytes, (100).to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big"))
    control.wrote = LOG_BYTES
    store.flush()
    assert flushed(store) == LOG_BYTES
    assert read_checkpoint(store.path).watermark == last.size_bytes
    assert store.put("T", b"", flush="sync").physical_offset == LOG_BYTES


def test_published_record_that_is_damaged_is_made_durable_as_it_is(store):
    """And is no walk without an end; the watermark's record is the one before it."""
    store.put("T", b"1")
    second = store.put("T", b"2")
    store._parts.control.last_record = 0
    store._parts.commit_log.files.get(0).write(second.physical_offset, bytes(4))
    assert store.flush_log() == second.physical_offset + second.size_bytes
    assert read_checkpoint(store.path).watermark == second.physical_offset
    store._parts.commit_log.files.get(0).write(second.physical_offset, second.size_bytes.to_bytes(4, "big"))


# ------------------------------------------------------------------------------------------------- the service


def test_service_flushes_when_enough_pages_are_dirty_or_enough_time_is_over(tmp_path, monkeypatch):
    from cystore.engine.log import flush as module

    now = [1000.0]
    monkeypatch.setattr(module, "monotonic_s", lambda: now[0])
    with open_small(tmp_path / "s", flush_commit_log_least_pages=2) as store:
        flusher = store._parts.flusher
        store.put("T", body_for(4000))
        flusher.run_once()
        assert flushed(store) == 0
        store.put("T", body_for(4300))
        flusher.run_once()
        assert flushed(store) == store.stats()["wrote"]
        store.put("T", b"little")
        flusher.run_once()
        assert flushed(store) < store.stats()["wrote"]
        now[0] += 10.0
        flusher.run_once()
        assert flushed(store) == store.stats()["wrote"]


class GoingOn:
    """A control block whose store is put to while somebody waits for the next flush."""

    def __init__(self, control, put) -> None:
        self._control, self._put = control, put

    def __getattr__(self, name):
        return getattr(self._control, name)

    def wait_flush(self, seen: int, timeout_ms: int) -> None:
        self._put()


def test_service_syncs_no_page_that_appends_are_still_in(tmp_path, monkeypatch):
    """Seen: the flush write-protected the page of the log's end, and each next append met a page fault with the
    append lock held."""
    with open_small(tmp_path / "s", flush_commit_log_least_pages=0) as store:
        log, flusher = Log(store, monkeypatch), store._parts.flusher
        first = store.put("T", body_for(1000))
        flusher._control = GoingOn(flusher._control, lambda: store.put("T", body_for(1500)))
        flusher.run_once()
        assert store.wrote_position > PAGE
        assert log.synced == [(0, first.size_bytes)]
        assert flushed(store) == first.size_bytes
        assert read_checkpoint(store.path).watermark == first.size_bytes


def test_service_flushes_the_last_page_where_nobody_appends(tmp_path):
    with open_small(tmp_path / "s", flush_commit_log_least_pages=0) as store:
        store.put("T", body_for(1000))
        store._parts.flusher.run_once()
        assert flushed(store) == store.wrote_position


def test_service_flushes_queues_index_and_checkpoint_once_a_second(tmp_path, monkeypatch):
    from cystore.derived.dispatch import flush as module

    now = [1000.0]
    monkeypatch.setattr(module, "monotonic_s", lambda: now[0])
    with open_small(tmp_path / "s") as store:
        result = store.put("T", b"", keys=("k",))
        store.dispatch()
        control = store._parts.control
        store._parts.flush_once()
        assert control.index_flushed == 0
        now[0] += 1.0
        store._parts.flush_once()
        end = result.size_bytes
        assert (control.index_flushed, control.flushed, control.queue_flushed(0)) == (end, end, 1)
        fields = read_checkpoint(store.path)
        assert fields.index_watermark == fields.watermark == end
        assert fields.logics_timestamp == fields.index_timestamp == result.store_timestamp_ms


def test_few_dirty_pages_of_queues_wait_while_more_is_dispatched(tmp_path, monkeypatch):
    """FlushConsumeQueueService: flushConsumeQueueLeastPages, and everything after the thorough interval."""
    from cystore.derived.dispatch import flush as module

    now = [1000.0]
    monkeypatch.setattr(module, "monotonic_s", lambda: now[0])
    with open_small(
        tmp_path / "s", flush_consume_queue_least_pages=2, mapped_file_size_consume_queue_bytes=20_000
    ) as store:
        control, flusher = store._parts.control, store._parts.derived_flusher

        def turn(messages: int) -> int:
            for _ in range(messages):
                store.put("T", b"")
            store.dispatch()
            now[0] += 1.0
            flusher.run_once()
            return control.queue_flushed(0)

        assert turn(1) == 0  # one entry
        assert turn(408) == 0  # 8180 bytes: one whole page and a part of the second
        assert turn(1) == 410  # 8200 bytes: two pages are full
        assert turn(1) == 410
        assert turn(0) == 411  # nothing came since the last turn: a quiet store is flushed
        assert turn(1) == 411
        now[0] += 60.0
        assert turn(1) == 413
    with open_small(tmp_path / "none", flush_consume_queue_least_pages=0) as store:
        store.put("T", b"")
        store.dispatch()
        now[0] += 1.0
        store._parts.derived_flusher.run_once()
        assert store._parts.control.queue_flushed(0) == 1


def test_many_flush_at_once(store):
    """Log, queues, index and the table of queue offsets, by threads of several processes."""
    work = (
        "import threading\n"
        "def work():\n"
        "    for n in range(15):\n"
        "        store.put(f'T{n}', b'x', keys=('k',)); store.dispatch(); store.flush()\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "errors = []\n"
        "threading.excepthook = lambda given: errors.append(str(given.exc_value))\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "errors"
    )
    with processes(3) as several:
        for process in several:
            process.do(OPEN, path=str(store.path), settings=SETTINGS)
        for process in several:
            process.send(work)
        assert [process.answer() for process in several] == [[], [], []]
    assert flushed(store) == store.stats()["wrote"]
    assert len(list(store.scan())) == 3 * 3 * 15
