"""Goal: what a put waits for at the end of a segment, or of the pages at hand, is small whatever the settings are.
Method: page faults, files made, syncs and turns of dispatch are counted in single puts."""

from __future__ import annotations

import itertools
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.attachment.release_thread import housekeeper
from cystore.derived.dispatch import backlog, dispatcher
from cystore.engine.files import pace
from cystore.engine.files.segments import MappedFileQueue
from cystore.engine.log import allocate
from cystore.engine.log.allocate import FLAG_SLAVE
from cystore.errors import StoreResourceError
from cystore.system import files
from cystore.system.ranges.pages_ahead import PagesAhead
from tests.support.disks import log_folders
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

pytestmark = [pytest.mark.disk, pytest.mark.unsanitized]  # about pages and files ahead, which no kernel makes

PAGE = os.sysconf("SC_PAGESIZE")
MIB = 1 << 20
FILE_BYTES = 4 * MIB
HALF = FILE_BYTES // 2


def faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_minflt + usage.ru_majflt


@pytest.fixture(autouse=True)
def _all_room_from_the_start(monkeypatch):
    """`test_allocate.py` has the room of a short log."""
    monkeypatch.setattr(allocate, "FIRST_AHEAD_BYTES", allocate.MOST_BYTES)


def log_files(store) -> list[int]:
    return sorted(int(p.name) for p in (store.path / "commitlog").iterdir() if p.name != "CYSTORE")


@pytest.mark.unsanitized  # the sanitizer has pages of its own
def test_a_put_faults_in_few_pages(tmp_path):
    """Seen: the first put in a segment faulted in 10 MiB of it, 2,557 page faults and 10 ms of processor time. Later
    a put faulted in 1 MiB, which took 20 ms where memory was scarce. Now it is 128 KiB, and most puts need none."""
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=4 * MIB, populate_ahead_bytes=16 * MIB
    ) as store:
        counts, body = [], bytes(2_000)
        while store.wrote_position < 10 * MIB:
            before = faults()
            store.put("T", body)
            counts.append(faults() - before)
        assert max(counts) <= 128 * 1024 // PAGE + 64
        assert sorted(counts)[len(counts) * 9 // 10] == 0


def test_a_writer_between_fast_ones_gets_the_pages_that_it_needs(tmp_path):
    """The others' part of the log is not faulted in here."""
    settings = {**SETTINGS, "mapped_file_size_commit_log_bytes": 16 * MIB, "populate_ahead_bytes": 16 * MIB}
    with cystore.open(tmp_path / "s", **settings) as store, Process() as other:
        other.do(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(store.path),
            settings=settings,
        )
        store.put("T", b"x" * 100)
        counts = []
        for _ in range(8):
            other.do("[store.put('T', bytes(1000)) for _ in range(600)] and None")
            before = faults()
            store.put("T", b"x" * 100)
            counts.append(faults() - before)
        assert max(counts) <= 40


@pytest.mark.unsanitized
def test_the_service_of_a_process_that_does_not_append_faults_in_no_pages(tmp_path):
    """Seen: two processes faulted in the same pages at the same time, one of them for nothing, and a put of the other
    one waited for it."""
    sizes = ("mapped_file_size_commit_log_bytes", "populate_ahead_bytes", "allocate_ahead_bytes")
    settings = {**SETTINGS, **dict.fromkeys(sizes, 16 * MIB)}
    with cystore.open(tmp_path / "s", **settings) as store, Process() as other:
        other.do(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(store.path),
            settings=settings,
        )
        store.put("T", b"x" * 100)
        other.do("[store.put('T', bytes(1000)) for _ in range(600)] and None")
        allocator = store._parts.allocator
        before = faults()
        allocator.run_once()
        assert faults() - before <= 64
        store.put("T", b"x" * 100)
        allocator.run_once()
        assert allocator._populated - store.wrote_position >= 4 * MIB


def test_large_messages_and_batches_find_their_pages(tmp_path):
    """They want more pages than a step has."""
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=8 * MIB) as store:
        put = [store.put("T", bytes([n]) * (3 * MIB)) for n in range(4)]
        put += store.put_many([cystore.Message(topic="T", body=bytes([n]) * 1000) for n in range(200)] * 60)
        assert [m.physical_offset for m in store.scan()] == [r.physical_offset for r in put]


@pytest.mark.parametrize("populate", [0, 1, PAGE, LOG_BYTES])
def test_every_setting_of_pages_ahead_appends(tmp_path, populate):
    with open_small(tmp_path / "s", populate_ahead_bytes=populate, allocate_ahead_bytes=PAGE) as store:
        sizes = itertools.cycle([200, 5_000, PAGE, 9_999])
        put = [store.put("T", body_for(next(sizes))) for _ in range(40)]
        assert [m.physical_offset for m in store.scan()] == [r.physical_offset for r in put]


def test_the_next_file_is_made_before_a_put_needs_it(tmp_path, monkeypatch):
    """Seen: while much waited to be dispatched no room was made ahead, and each put that came to the end of a segment
    made the next one: 10 to 75 ms, in which the disk made its name durable."""
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=FILE_BYTES) as store:
        allocator = store._parts.allocator
        store.put("T", body_for(HALF))
        allocator.run_once()
        assert log_files(store) == [number * FILE_BYTES for number in range(5)]
        made, synced = [], []
        create_sized, sync_directory = files.create_sized, files.sync_directory
        with monkeypatch.context() as watched:
            watched.setattr(files, "create_sized", lambda *a, **n: (made.append(a), create_sized(*a, **n)))
            watched.setattr(files, "sync_directory", lambda *a: (synced.append(a), sync_directory(*a)))
            assert store.put("T", body_for(HALF + 100)).physical_offset == FILE_BYTES
        assert (made, synced) == ([], [])


def test_a_put_makes_the_file_that_somebody_removed_again(tmp_path):
    """RocketMQ's load removes files ahead of the log's end."""
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=FILE_BYTES, allocate_ahead_bytes=PAGE
    ) as store:
        allocator = store._parts.allocator
        store.put("T", body_for(HALF))
        allocator.run_once()
        (store.path / "commitlog" / f"{FILE_BYTES:020d}").unlink()
        put = store.put("T", body_for(HALF + 100), flush="sync")
        assert put.physical_offset == FILE_BYTES
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=FILE_BYTES) as store:
        assert [m.queue_offset for m in store.scan()] == [0, 1]


@pytest.mark.parametrize("several", [False, True], ids=["one folder", "several folders"])
def test_a_file_that_another_process_appends_to_stays_when_its_maker_fails(tmp_path, monkeypatch, several):
    """Seen: a process without a free descriptor could not sync the folder of the file that it had just named, and
    unlinked it, although sync puts of another process were in it."""
    settings: dict[str, Any] = {"mapped_file_size_commit_log_bytes": FILE_BYTES, "allocate_ahead_bytes": PAGE}
    if several:
        (tmp_path / "more").mkdir()
        settings |= log_folders.several([tmp_path / "more"])
    with open_small(tmp_path / "s", **settings) as maker, open_small(tmp_path / "s", **settings) as other:
        other.put("T", body_for(HALF), flush="sync")
        sync_directory, first, put = files.sync_directory, [True], []

        def without_descriptor(path):
            if not first or not (path / f"{FILE_BYTES:020d}").exists():
                return sync_directory(path)
            first.clear()
            put.append(other.put("T", body_for(HALF + 100), flush="sync"))
            raise StoreResourceError("no descriptor is left", path=path)

        monkeypatch.setattr(files, "sync_directory", without_descriptor)
        with pytest.raises(StoreResourceError, match="no descriptor is left"):
            maker._parts.allocator.make_successors()
        assert put[0].physical_offset == FILE_BYTES
        assert maker.put("T", b"goes on", flush="sync").queue_offset == 2
    with open_small(tmp_path / "s", **settings) as store:
        assert [m.queue_offset for m in store.scan()] == [0, 1, 2]


def test_a_process_that_dies_making_the_next_file_leaves_it_to_the_put(tmp_path):
    with (
        open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=FILE_BYTES) as store,
        Process() as other,
    ):
        store.put("T", body_for(HALF))
        other.do(
            "import cystore, os; store = cystore.open(path, **settings); "
            "from cystore.system import files; files.create_sized = lambda *a, **n: os._exit(1)",
            path=str(store.path),
            settings={**SETTINGS, "mapped_file_size_commit_log_bytes": FILE_BYTES},
        )
        with pytest.raises(EOFError):
            other.do("store._parts.allocator.run_once()")
        store._parts.allocator.run_once()
        assert log_files(store) == [0]
        assert store.put("T", body_for(HALF + 100)).physical_offset == FILE_BYTES


def test_pages_of_fast_appends_are_in_memory_before_their_room_is_there(tmp_path, monkeypatch):
    """Seen: a put that came to a missing page made 8 MiB of pages at once, the kernel's read-ahead: 20 ms of processor
    time where memory is scarce."""
    monkeypatch.setattr(pace, "FAST_BYTES", MIB)
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=FILE_BYTES) as store:
        parts = store._parts
        allocator, log, control = parts.allocator, parts.commit_log.files, parts.control
        store.put("T", body_for(100))
        allocator.run_once()
        assert control.allocated == 2 * FILE_BYTES
        read, read_pages = [], PagesAhead.read

        def watched(self, begin, end):
            assert control.allocated % FILE_BYTES == begin and not control.owner("housekeeping")
            read.append((begin, end))
            read_pages(self, begin, end)

        monkeypatch.setattr(PagesAhead, "read", watched)
        store.put("T", body_for(FILE_BYTES - 200))
        allocator.run_once()
        assert read[:2] == [(0, HALF), (HALF, FILE_BYTES)]  # of the third file
        assert control.allocated >= 3 * FILE_BYTES
        assert set(log.get(2 * FILE_BYTES).pages_in_memory()) == {1}


def test_empty_pages_are_written_ahead_where_puts_wait_for_the_disk(tmp_path, monkeypatch):
    """The first sync of a page waits for the file system's own notes as well."""
    settings = {"mapped_file_size_commit_log_bytes": FILE_BYTES, "allocate_ahead_bytes": FILE_BYTES}
    with open_small(tmp_path / "s", **settings) as store:
        allocator, written = store._parts.allocator, []
        monkeypatch.setattr(allocate, "WRITTEN_AHEAD_BYTES", MIB)
        monkeypatch.setattr(
            allocator, "_sync_ahead", lambda segment, begin, end: written.append((begin, end))
        )
        store.put("T", b"1")
        store.put("T", b"2", flush="sync")
        allocator.run_once()
        assert written == []
        for _ in range(2):
            for _ in range(allocate.OFTEN_SYNCS):
                put = store.put("T", b"3", flush="sync")
            allocator.run_once()
        end = put.physical_offset + put.size_bytes
        (begin, upto), *more = written
        assert more == [], "half of it is enough until the appends come closer"
        assert begin < end <= begin + PAGE and upto - begin == MIB


def test_rare_appends_take_no_memory_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(PagesAhead, "read", None)
    settings = {"mapped_file_size_commit_log_bytes": FILE_BYTES, "populate_ahead_bytes": MIB}
    with open_small(tmp_path / "s", **settings) as store:
        for _ in range(3):
            store.put("T", body_for(FILE_BYTES // 4))
            store._parts.allocator.run_once()
        monkeypatch.setattr(pace, "FAST_S", 0.0)
        for _ in range(8):
            store.put("T", body_for(FILE_BYTES // 2 + 100))
            store._parts.allocator.run_once()
        assert store._parts.control.allocated >= 9 * FILE_BYTES


def test_the_pages_of_new_room_are_read_once_and_in_few_goes(tmp_path, monkeypatch):
    """Each go waits for the interpreter, up to 5 ms if a program keeps it busy. Seen: 551 goes for 900 MB."""
    monkeypatch.setattr(pace, "FAST_BYTES", MIB)
    settings = {"mapped_file_size_commit_log_bytes": 128 * MIB, "allocate_ahead_bytes": 64 * MIB}
    with open_small(tmp_path / "s", populate_ahead_bytes=64 * MIB, **settings) as store:
        control, allocator = store._parts.control, store._parts.allocator
        read: list[tuple[int, int]] = []
        monkeypatch.setattr(PagesAhead, "read", lambda _self, begin, end: read.append((begin, end)))
        for _ in range(2):
            while control.allocated - control.wrote >= 32 * MIB or control.wrote == 0:
                store.put("T", body_for(MIB))
            for _ in range(8):
                allocator.run_once()
        all_bytes = max(end for _, end in read) - min(begin for begin, _ in read)
        assert 64 * MIB <= all_bytes <= sum(end - begin for begin, end in read) <= all_bytes + 2 * MIB
        assert len(read) <= 2 * 8


def test_a_slave_of_a_fast_master_has_more_room_ahead(tmp_path, monkeypatch):
    """Seen: a slave waited 60 to 250 ms inside of fallocate, while the disk read which of its blocks are free."""
    settings = {"mapped_file_size_commit_log_bytes": 64 * MIB, "allocate_ahead_bytes": MIB}
    with open_small(tmp_path / "s", **settings) as store:
        control, allocator = store._parts.control, store._parts.allocator
        store.put("T", b"first")

        def room_after(bytes_per_s: float, slave: bool = True) -> int:
            monkeypatch.setattr(allocator._pace, "look", lambda: None)
            allocator._pace.bytes_per_s = bytes_per_s
            while control.allocated - control.wrote >= MIB // 2:
                store.put("T", body_for(MIB // 4))
            control.set_flag(FLAG_SLAVE if slave else 0)
            allocator.run_once()
            control.clear_flag(FLAG_SLAVE)
            return round((control.allocated - control.wrote) / MIB)

        assert room_after(0) == room_after(MIB / 2) == 1
        assert room_after(3 * MIB, slave=False) == 1
        assert room_after(3 * MIB) == 3
        assert room_after(1000 * MIB) == allocate.FAST_AHEAD_TIMES


def test_a_put_that_waits_for_room_makes_a_short_step(tmp_path):
    """All puts wait meanwhile. The service makes the rest."""
    settings = {"mapped_file_size_commit_log_bytes": 64 * MIB, "allocate_ahead_bytes": MIB}
    with open_small(tmp_path / "s", **settings) as store:
        control, allocator = store._parts.control, store._parts.allocator
        allocator._pace.bytes_per_s = 1000 * MIB
        for _ in range(9):
            store.put("T", body_for(MIB // 2))
            assert control.allocated - control.wrote <= MIB


def test_room_is_reserved_in_pieces(tmp_path, monkeypatch):
    """Meanwhile nobody else may write to the file: a slave does."""
    monkeypatch.setattr(allocate, "RESERVED_BYTES", MIB)
    settings = {"mapped_file_size_commit_log_bytes": 64 * MIB, "allocate_ahead_bytes": 8 * MIB}
    with open_small(tmp_path / "s", **settings) as store:
        control, reserve, reserved = store._parts.control, files.allocate, []
        store.put("T", body_for(3 * MIB))

        def allocated(fd: int, begin: int, end: int, path: Path | str = "") -> None:
            if begin:  # else of a new consume queue
                assert begin == control.allocated, "the piece before it is published"
                reserved.append(end - begin)
            reserve(fd, begin, end, path)

        monkeypatch.setattr(files, "allocate", allocated)
        store.put("T", body_for(3 * MIB))
        store._parts.allocator.run_once()
        assert len(reserved) > 4 and max(reserved) == MIB


def test_the_service_waits_for_nothing_under_the_lock_that_puts_wait_for(tmp_path, monkeypatch):
    """Seen: it reserved space under the lock, and waited there for the disk and for the interpreter: up to 99 ms."""
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=FILE_BYTES) as store:
        store.put("T", body_for(100))
        held, reserve = [], files.allocate
        monkeypatch.setattr(
            files,
            "allocate",
            lambda *a: (held.append(store._parts.control.owner("housekeeping")), reserve(*a)),
        )
        for _ in range(3):
            store._parts.allocator.run_once()
            store.put("T", body_for(FILE_BYTES // 2 + 100))
        assert held and not any(held)


def test_room_that_somebody_else_made_meanwhile_is_not_taken_back(tmp_path, monkeypatch):
    settings = {"mapped_file_size_commit_log_bytes": FILE_BYTES, "allocate_ahead_bytes": MIB}
    with open_small(tmp_path / "s", **settings) as store:
        store.put("T", body_for(MIB // 2 + PAGE))
        control, reserve = store._parts.control, files.allocate

        def beside(*arguments):
            reserve(*arguments)
            control.allocated = FILE_BYTES

        assert control.allocated < 2 * MIB
        monkeypatch.setattr(files, "allocate", beside)
        store._parts.allocator.run_once()
        assert control.allocated == FILE_BYTES


def test_a_put_goes_on_when_there_is_room_although_others_make_more(tmp_path):
    """Seen: a put waited 99 ms for the lock of another process, which had made its room long before and continued to
    make more."""
    with open_small(tmp_path / "s", allocate_ahead_bytes=4096) as store, Process() as other:
        other.do(
            "import cystore; store = cystore.open(path, services=()); parts = store._parts",
            path=str(store.path),
        )
        other.do("turn = parts.control.held('housekeeping'); turn.__enter__(); None")
        allocator, asked = store._parts.allocator, threading.Event()
        make_room = allocator._make_room
        allocator._make_room = lambda needed: (asked.set(), make_room(needed))
        putter = threading.Thread(target=store.put, args=("T", body_for(LOG_BYTES - 100)))
        putter.start()
        asked.wait()
        other.do("parts.allocator._reserve_up_to(size)", size=LOG_BYTES)
        putter.join(60)
        stuck = putter.is_alive()
        other.do("turn.__exit__(None, None, None); None")
        putter.join()
        assert not stuck
        assert store.wrote_position > 0


def test_a_put_leaves_cleaned_segments_to_the_service(tmp_path, monkeypatch):
    """Seen: a put in a new segment let the cleaned ones go, 86 and 134 ms: the last mapping of a removed file waits
    until the disk has freed its blocks. A thread of each process does that twice a second."""
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        for _ in range(6):
            store.put("T", body_for(LOG_BYTES - 100))
        housekeeper.unwatch(store._parts)  # here the test does its work
        store.flush()
        with open_small(tmp_path / "s") as other:
            assert other.clean().segments
        gone, forget_below = [], MappedFileQueue.forget_below
        monkeypatch.setattr(
            MappedFileQueue, "forget_below", lambda self, at: (gone.append(at), forget_below(self, at))
        )
        store.put("T", body_for(LOG_BYTES - 100))
        assert gone == []
        store._parts.let_cleaned_go()
        assert gone


def test_a_put_helps_to_dispatch_for_one_turn(tmp_path, monkeypatch):
    """Seen: a writer, and the thread that makes room for writers, dispatched 4 MiB of log in one go. Each new queue
    needs a file, so that took seconds where there were thousands."""
    with open_small(tmp_path / "s", max_queues=64) as store:
        for queue_id in range(40):
            store.put("T", b"1", queue_id=queue_id)
        monkeypatch.setattr(backlog, "HELP_BYTES", 1)
        monkeypatch.setattr(dispatcher, "TURN_S", 0.0)
        parts = store._parts
        parts.backlog.relieve()
        first = parts.control.dispatched
        assert 0 < first < parts.control.wrote
        parts.backlog.relieve()
        assert first < parts.control.dispatched < parts.control.wrote
        store.dispatch()
        assert parts.control.dispatched == parts.control.wrote


def test_a_put_that_comes_to_a_segment_others_ended_goes_to_the_next_one(tmp_path):
    """Seen beside a cleaner: the segment was mapped for reading only by then, and the put raised StoreError."""
    with open_small(tmp_path / "s") as store:
        for _ in range(40):
            store.put("T", body_for(1024))
        log, allocator = store._parts.commit_log.files, store._parts.allocator
        log.close()  # what is mapped from now on is ended
        log._is_sealed = lambda end: True
        allocator._populated = 0
        assert not log.get(0).writable
        assert allocator.fault_in(0, 100) == log.file_bytes
        allocator._populated = 0
        assert allocator.populate_ahead(LOG_BYTES) == 0  # nor does the service touch it
