"""Goal: nothing is ever written to beyond what is reserved on disk (I5), and a full disk is an error that passes when
there is space again. Method: the allocator on real files, files that a kill left behind, and a store on a small
disk."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
from pathlib import Path

import pytest

import cystore
from cystore.derived.files.consume_queue import ConsumeQueue
from cystore.engine.files.progress import Progress
from cystore.engine.files.segments import MappedFileQueue
from cystore.engine.log import allocate
from cystore.errors import (
    FlushFailedError,
    NotDurableError,
    StoreFullError,
    StoreIOError,
    StoreResourceError,
)
from cystore.system import files
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

pytestmark = pytest.mark.disk

PAGE = os.sysconf("SC_PAGESIZE")


def reserved(path) -> int:
    return path.stat().st_blocks * 512


def segments(store) -> list[int]:
    return sorted(int(p.name) for p in (store.path / "commitlog").iterdir() if p.name != "CYSTORE")


def segment_path(store, base: int):
    return store.path / "commitlog" / f"{base:020d}"


def parts(store):
    return store._parts


def test_store_that_is_only_opened_makes_no_file(tmp_path):
    with open_small(tmp_path / "s") as store:
        assert parts(store).allocator.run_once() == Progress(0)
        assert not (tmp_path / "s" / "commitlog").exists()
        assert store.stats()["allocated"] == 0


def test_steps_are_reserved_ahead_of_use(tmp_path):
    with open_small(tmp_path / "s", allocate_ahead_bytes=PAGE) as store:
        store.put("T", b"")
        assert store.stats()["allocated"] == PAGE == reserved(segment_path(store, 0))
        store.put("T", body_for(PAGE))
        allocated = store.stats()["allocated"]
        assert allocated >= store.stats()["wrote"]
        assert reserved(segment_path(store, 0)) == allocated
        assert segment_path(store, 0).stat().st_size == LOG_BYTES


def files_up_to(last: int) -> list[int]:
    return [number * LOG_BYTES for number in range(last + 1)]


def test_a_put_makes_the_file_that_it_needs_and_the_service_four_more(tmp_path):
    """Seen: two files of 16 MiB ahead were full before the disk had made the next name durable, and a put waited 260
    ms for it."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"")
        assert segments(store) == [0]
        for _ in range(2):
            parts(store).allocator.run_once()
            assert segments(store) == files_up_to(4)
            assert store.stats()["allocated"] == 2 * LOG_BYTES
            assert parts(store).control.ready_base == 4 * LOG_BYTES
        store.put("T", body_for(LOG_BYTES - 8))
        for _ in range(2):
            parts(store).allocator.run_once()
            assert segments(store) == files_up_to(5)
            assert store.stats()["allocated"] == 3 * LOG_BYTES


def test_a_clean_close_leaves_two_files_ahead(tmp_path):
    """RocketMQ looks for the end of such a log from the last file but two on."""
    for last in (0, 1, 2):
        with open_small(tmp_path / "s") as store:
            store.put("T", b"" if last == 0 else body_for(LOG_BYTES - 8))
            parts(store).allocator.run_once()
            assert len(segments(store)) > last + 3
        assert segments(store) == files_up_to(last + 2)


def test_the_files_ahead_stay_while_others_are_attached(tmp_path):
    with open_small(tmp_path / "s") as store:
        with open_small(tmp_path / "s") as other:
            other.put("T", b"")
            parts(other).allocator.run_once()
        assert segments(store) == files_up_to(4)


def test_the_service_makes_no_file_under_the_lock_that_puts_wait_for(tmp_path, monkeypatch):
    """Seen: the allocate service held it for up to 300 ms, in which the disk made a name durable."""
    with open_small(tmp_path / "s", allocate_ahead_bytes=4 * LOG_BYTES) as store:
        store.put("T", b"")
        control, held = parts(store).control, []
        create = MappedFileQueue.create

        def watched(self, base, allocated_bytes):
            held.append(control.owner("housekeeping"))
            return create(self, base, allocated_bytes)

        monkeypatch.setattr(MappedFileQueue, "create", watched)
        for _ in range(6):
            parts(store).allocator.run_once()
            store.put("T", body_for(LOG_BYTES - 8))
        assert held == [0] * len(held)
        assert len(held) >= 6


def test_a_file_that_could_not_be_made_ahead_is_made_later(tmp_path, monkeypatch):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"")

        def full(*_):
            raise StoreFullError("no room")

        with monkeypatch.context() as failing:
            failing.setattr(MappedFileQueue, "create", full)
            with pytest.raises(StoreFullError):
                parts(store).allocator.run_once()
        parts(store).allocator.run_once()
        assert segments(store) == files_up_to(4)


def test_whoever_runs_goes_ahead_once_half_of_the_step_is_used(tmp_path):
    with open_small(tmp_path / "s", allocate_ahead_bytes=2 * PAGE) as store:
        store.put("T", b"")
        before = store.stats()["allocated"]
        parts(store).allocator.run_once()
        assert store.stats()["allocated"] == before
        store.put("T", body_for(PAGE))
        parts(store).allocator.run_once()
        assert store.stats()["allocated"] > before


def test_allocator_does_not_wait_for_another_one(tmp_path):
    with open_small(tmp_path / "s", allocate_ahead_bytes=2 * PAGE) as store, Process() as other:
        store.put("T", body_for(PAGE + 100))
        other.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(store.path), settings=SETTINGS
        )
        other.do("turn = store._parts.control.held('housekeeping'); turn.__enter__()")
        assert parts(store).allocator.run_once() == Progress(0)
        other.kill()
        assert parts(store).allocator.run_once().done > 0


@pytest.mark.parametrize("left", ["the next file", "the first file"])
def test_file_that_a_killed_allocator_left_is_reserved_before_it_is_used(tmp_path, left):
    """It was named, but its step was not published: it may have been a smaller one."""
    with open_small(tmp_path / "s", allocate_ahead_bytes=PAGE) as store:
        base = 0
        if left == "the next file":
            store.put("T", body_for(LOG_BYTES - 8))
            base = LOG_BYTES
        (store.path / "commitlog").mkdir(exist_ok=True)
        with open(segment_path(store, base), "wb") as file:
            file.truncate(LOG_BYTES)
        assert reserved(segment_path(store, base)) == 0
        result = store.put("T", body_for(2 * PAGE))
        assert result.physical_offset == base
        assert reserved(segment_path(store, base)) >= store.stats()["allocated"] - base >= 2 * PAGE


def test_reopened_store_goes_on_where_it_ended(tmp_path):
    with open_small(tmp_path / "s") as store:
        end = store.put("T", body_for(PAGE)).size_bytes
    with open_small(tmp_path / "s") as store:
        assert store.stats()["allocated"] == end
        assert store.put("T", b"").physical_offset == end
        assert store.stats()["allocated"] > end


def test_pages_ahead_are_faulted_in_by_a_process_that_appends(tmp_path):
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 22, populate_ahead_bytes=1 << 20
    ) as store:
        assert parts(store).allocator.populate_ahead() == 0
        store.put("T", b"")

        assert parts(store).allocator.populate_ahead() in range(1 << 20)


def test_pages_ahead_are_faulted_in_piece_by_piece(tmp_path, monkeypatch):
    """Seen: one turn faulted in all pages of a large `populate_ahead_bytes`. Meanwhile its thread did not dispatch."""
    monkeypatch.setattr(allocate, "POPULATED_BYTES", 16 * PAGE)
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 22, populate_ahead_bytes=1 << 20, services=()
    ) as store:
        store.put("T", b"")
        parts(store).allocator.run_once()
        pieces = list(iter(parts(store).allocator.populate_ahead, 0))
        assert max(pieces) == 16 * PAGE and sum(pieces) > 1 << 19


def forget_translations() -> None:
    """Makes this processor forget which pages may be written. The kernel lets it believe for a while that a page is
    protected that is not any more; the fault that follows waits for nothing, but it counts. Unmapping many pages at
    once forgets all."""
    with mmap.mmap(-1, 256 * PAGE) as many:
        many[:] = bytes(256 * PAGE)


def test_pages_that_a_flush_protected_are_faulted_in_before_the_next_append(tmp_path):
    """A page that was written to the disk is write-protected: the next append waited in a page fault for the file
    system, with the append lock and the interpreter's lock held. Where no page is ever protected (tmpfs) there is
    nothing to be seen."""

    def faults_of_a_put(*, looked_after: bool) -> int:
        store.put("T", b"x" * 100)
        store.flush_log()
        if looked_after:
            parts(store).allocator.run_once()
        forget_translations()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        store.put("T", b"x" * 100)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 22, populate_ahead_bytes=1 << 20, services=()
    ) as store:
        store.put("T", b"")
        parts(store).allocator.run_once()
        assert min(faults_of_a_put(looked_after=True) for _ in range(5)) == 0


STORE_ON_A_SMALL_DISK = """
import os, sys
from tests.support.small_stores import open_small
from cystore.engine.log import allocate
from cystore.errors import FlushFailedError, NotDurableError, StoreFullError, StoreIOError
root = sys.argv[1]
ballast = os.path.join(root, "ballast")
with open(ballast, "wb") as file:
    file.write(bytes(600_000))
store = open_small(os.path.join(root, "s"), mapped_file_size_commit_log_bytes=1 << 18, max_queues=16)
acknowledged = []
def put():
    acknowledged.append((store.put("T", os.urandom(5000))))
refused = 0
while refused < 3:
    try:
        put()
    except StoreFullError as error:
        refused += 1
        assert "no space left" in str(error)
before = len(acknowledged)
assert before > 10, before
assert [m.queue_offset for m in store.scan()] == list(range(before))
os.unlink(ballast)
for _ in range(40):
    put()
assert [m.physical_offset for m in store.scan()] == [r.physical_offset for r in acknowledged]
assert [r.queue_offset for r in acknowledged] == list(range(before + 40))
store.close()
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_full_disk_refuses_puts_and_free_space_lets_them_go_on(tmp_path):
    """On a disk of one megabyte of its own. Everything acknowledged stays readable (I5: no signal)."""
    out = on_small_disk("1536k", tmp_path, STORE_ON_A_SMALL_DISK)
    assert out == "went on\n"


KILLED_ON_A_FULL_DISK = """
import logging, os, signal, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root = sys.argv[1]
settings = {"mapped_file_size_commit_log_bytes": 1 << 18}
rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT)
os.write(rest, bytes(600_000))
if os.fork() == 0:
    store = open_small(os.path.join(root, "s"), **settings)
    try:
        while True:
            store.put(f"T{store.stats()['put_count'] % 70}", os.urandom(5000), keys=("k",))
    except cystore.StoreFullError:
        os.kill(os.getpid(), signal.SIGKILL)
assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
def use_up(fd):
    try:
        while os.write(fd, bytes(4096)):
            pass
    except OSError:
        os.close(fd)
use_up(rest)
store = open_small(os.path.join(root, "s"), **settings)
before = len(list(store.scan()))
assert before > 100, before
try:
    while True:
        store.put("T0", bytes(5000))
        before += 1
except cystore.StoreFullError:
    pass
os.unlink(os.path.join(root, "rest"))
store.put("T0", b"goes on", keys=("k",))
for queue in range(70):
    messages, maximum = store.get(f"T{queue}", 0, 0, 1000).messages, store.topics()[f"T{queue}"][0][1]
    assert [m.queue_offset for m in messages][:maximum] == list(range(len(messages))), queue
assert len(list(store.scan())) == before + 1
assert bytes(store.query("T0", "k", 1)[0].body) == b"goes on"
use_up(os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT))
store.close()
assert not os.path.exists(os.path.join(root, "s", "abort")), "not closed as clean"
print("went on")
"""


SMALL_VOLUME = """
import sys, cystore
from pathlib import Path
root = Path(sys.argv[1]) / "s"
with cystore.open(root) as store:
    for number in range(100):
        store.put("T", b"x" * 1000, keys=str(number))
    store.dispatch()
    store.flush()
    assert [bytes(one.body) for one in store.query("T", "99")] == [b"x" * 1000]
    print(sum(path.stat().st_blocks * 512 for path in root.rglob("*")))
with cystore.open(root) as store:
    assert len(list(store.scan())) == 100
    store.put("T", b"more")
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_a_new_store_with_default_settings_lives_on_a_small_volume(tmp_path):
    """Seen: 88 MB for ten messages, 64 MiB of log and 24 of the index."""
    assert int(on_small_disk("24m", tmp_path, SMALL_VOLUME)) <= 24_000_000


def test_room_ahead_grows_with_the_log(tmp_path):
    """A short log has little room; a writer that begins fast waits for few steps until it has all of it."""
    mib = 1 << 20
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=256 * mib) as store:
        control, steps = parts(store).control, []
        while control.allocated - control.wrote < 48 * mib:
            before = control.allocated
            store.put("T", body_for(mib // 2))
            if control.allocated != before:
                steps.append(control.allocated)
                content = control.wrote - mib // 2  # when the put made room
                assert control.allocated - content <= max(2, 4 * content // mib, 1) * mib + PAGE
        assert steps[0] <= 2 * mib + PAGE and len(steps) <= 4


def test_room_that_was_asked_for_is_there_from_the_start(tmp_path):
    mib = 1 << 20
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=64 * mib, allocate_ahead_bytes=32 * mib
    ) as store:
        store.put("T", b"")
        assert parts(store).control.allocated >= 32 * mib


def test_a_warm_up_takes_its_files_at_once(tmp_path):
    with open_small(
        tmp_path / "s", mapped_file_size_commit_log_bytes=4 << 20, warm_mapped_file_enable=True
    ) as store:
        store.put("T", b"")
        assert parts(store).control.allocated >= 4 << 20


@pytest.mark.may_skip(NOT_ASKED)
def test_store_that_was_killed_on_a_full_disk_opens_without_space(tmp_path):
    """And closes cleanly on one."""
    out = on_small_disk("3m", tmp_path, KILLED_ON_A_FULL_DISK)
    assert out == "went on\n"


def test_log_does_not_grow_while_there_is_no_headroom(tmp_path, monkeypatch):
    """The put that takes the last space must not take the space of the next recovery."""

    def refuse(path, length):
        raise StoreFullError("no space left", path=path)

    with monkeypatch.context() as full:
        full.setattr(files, "reserve", refuse)
        with open_small(tmp_path / "s") as store:
            with pytest.raises(StoreFullError, match="headroom"):
                store.put("T", b"")
            full.undo()
            assert store.put("T", b"").queue_offset == 0
            assert reserved(store.path / "headroom") > 64 * 1024
    assert not (tmp_path / "s" / "headroom").exists()


def test_records_that_could_not_be_dispatched_at_load_are_counted(tmp_path, monkeypatch):
    """On a full disk: no offset is given away twice, in queues that are known and in new ones."""
    store = open_small(tmp_path / "s")
    for n in range(6):
        store.put(f"T{n % 3}", b"%d" % n)
    turn = store._parts.control.held("dispatch")
    turn.__enter__()
    store._parts.forget()  # as if it was killed

    def refuse(*_):
        raise StoreFullError("no space left")

    with monkeypatch.context() as full:
        full.setattr(ConsumeQueue, "prepare", refuse)
        reopened = open_small(tmp_path / "s")
        assert [reopened.put(f"T{n}", b"").queue_offset for n in range(4)] == [2, 2, 2, 0]
    with reopened:
        assert [m.queue_offset for m in reopened.get("T1", 0, 0).messages] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.unsanitized
def test_fresh_store_and_ten_thousand_empty_queues_cost_megabytes(in_memory):
    with cystore.open(in_memory / "s") as store:
        store.put_many(
            [cystore.Message(topic=f"T{n % 100}", queue_id=n // 100, body=b"") for n in range(10_000)]
        )
        store.dispatch()
        taken = sum(reserved(path) for path in (in_memory / "s").rglob("*") if path.is_file())
        apparent = sum(path.stat().st_size for path in (in_memory / "s").rglob("*") if path.is_file())
    assert taken < 192 << 20 < 10 << 30 < apparent


def test_step_that_does_not_fit_is_taken_as_small_as_the_append_needs(tmp_path, monkeypatch):
    limit = 3 * PAGE
    original = files.allocate

    def little(fd, begin, end, path=""):
        if "commitlog" in str(path) and end > limit:
            raise StoreFullError("no space left", path=path)
        original(fd, begin, end, path)

    monkeypatch.setattr(files, "allocate", little)
    with open_small(tmp_path / "s") as store:
        store.put("T", body_for(PAGE))
        assert store.stats()["allocated"] <= limit
        with pytest.raises(StoreFullError):
            store.put("T", body_for(3 * PAGE))
        limit = LOG_BYTES
        assert store.put("T", body_for(3 * PAGE - 100)).queue_offset == 1


def test_name_of_a_file_that_a_killed_allocator_left_is_made_durable(tmp_path, monkeypatch):
    """It may have died between the name and the sync of the folder."""
    synced = []
    original = files.sync_directory
    with open_small(tmp_path / "s") as store:
        store.put("T", body_for(LOG_BYTES - 8))
        base = store.stats()["allocated"]
        files.create_sized(store.path, segment_path(store, base), LOG_BYTES, PAGE)
        monkeypatch.setattr(files, "sync_directory", lambda path: (synced.append(path), original(path)))
        parts(store).allocator.make_room(base + 1)
        assert store.path / "commitlog" in synced


def may_not_be_durable():
    """A store whose disk failed says so when it is closed."""
    return contextlib.suppress(NotDurableError)


@pytest.mark.parametrize(("code", "stops"), [(errno.EIO, True), (errno.ENOMEM, False)])
def test_disk_that_fails_while_a_segment_is_made_is_not_written_to_any_more(
    tmp_path, monkeypatch, code, stops
):
    """For everybody; what passes by itself (no memory) is an error of that put alone."""

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with may_not_be_durable(), open_small(tmp_path / "s") as store, Process() as other:
        store.put("T", b"kept", flush="sync")
        other.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(store.path), settings=SETTINGS
        )
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", refuse)
            with pytest.raises(StoreIOError if stops else StoreResourceError, match=os.strerror(code)):
                store.put_many([cystore.Message(topic="T", body=body_for(LOG_BYTES // 2))] * 20)
        if stops:
            with pytest.raises(FlushFailedError, match="the disk failed with Input/output error"):
                store.put("T", b"")
            with pytest.raises(Failed, match="FlushFailedError"):
                other.do("store.put('T', b'')")
        else:
            store.put("T", b"")
            other.do("store.put('T', b'')")
        assert bytes(store.get("T", 0, 0).messages[0].body) == b"kept"


def test_read_goes_on_where_dispatch_meets_a_failing_disk(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise StoreIOError("the disk is gone")

    with open_small(tmp_path / "s") as store:
        store.put("T", b"dispatched")
        store.dispatch()
        with monkeypatch.context() as broken:
            broken.setattr(ConsumeQueue, "prepare", refuse)
            store.put("U", b"not yet", keys=("k",))
            assert store.get("U", 0, 0).messages == []
            assert [bytes(m.body) for m in store.query("U", "k")] == [b"not yet"]
            assert [bytes(m.body) for m in store.get("T", 0, 0).messages] == [b"dispatched"]
            with pytest.raises(StoreIOError, match="the disk is gone"):
                store.dispatch()
        assert [bytes(m.body) for m in store.get("U", 0, 0).messages] == [b"not yet"]


def test_every_error_of_a_failing_disk_has_a_type_and_a_path(tmp_path, monkeypatch):
    """Even where a look at a file fails."""

    def refuse(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with may_not_be_durable(), open_small(tmp_path / "s", max_index_num=3) as store:
        for _ in range(3):
            store.put("T", b"", keys=("k",))
        with monkeypatch.context() as broken:
            broken.setattr(files, "create_sized", refuse)
            with pytest.raises(StoreIOError, match="path"):
                store.dispatch()
        with monkeypatch.context() as broken:
            broken.setattr(Path, "exists", refuse)
            with pytest.raises(StoreIOError, match="commitlog"):
                store.put_many([cystore.Message(topic="T", body=body_for(LOG_BYTES // 2))] * 20)
