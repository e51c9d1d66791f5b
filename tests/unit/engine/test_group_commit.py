"""Goal: the kernel leads syncs and waits for them as flush.py does, and leaves to it what it cannot do (I3).
Method: puts whose policy must not be asked; syncs that fail, leaders that died, waits that a signal ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

import cystore
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.errors import FlushSlaveTimeoutError, SlaveNotAvailableError, StoreMovedError, StoreTimeoutError
from tests.support.process import Failed, Process
from tests.support.small_stores import SETTINGS, body_for, open_small

OPEN = "import cystore; store = cystore.open(path, **settings); control = store._parts.control"
UNMAP_PAGE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
page = libc.sysconf(30)
begin = next(int(line.split('-')[0], 16) for line in open('/proc/self/maps') if '/commitlog/0' in line)
store.put('T', bytes(2 * page))
assert libc.munmap(ctypes.c_void_p(begin + page), page) == 0
"""


@pytest.fixture
def store(tmp_path) -> Iterator[cystore.MessageStore]:
    """The name of its segment is known, so the kernel leads from now on."""
    with open_small(tmp_path / "s") as opened:
        opened.put("T", b"first", flush="sync")
        yield opened


@pytest.fixture
def alone(store, monkeypatch) -> None:
    """Fails each put that the kernel does not finish."""
    store._parts.flusher.commits.slice_ms = 60_000
    monkeypatch.setattr(store._parts.appender.policy, "reach", lambda *_: pytest.fail("the policy was asked"))


@pytest.mark.usefixtures("alone")
def test_a_sync_of_the_kernel_leaves_the_same_watermark(store):
    store.put("T", b"before")
    put = store.put("T", b"durable", flush="sync")
    end = put.physical_offset + put.size_bytes
    assert store.stats()["flushed"] == end
    fields = read_checkpoint(store.path)
    assert (fields.watermark, fields.last_record) == (end, put.physical_offset)
    assert fields.last_record_checksum == store.read(put.physical_offset).body_crc
    assert fields.physic_timestamp == put.store_timestamp_ms


def test_the_timestamp_of_the_watermark_is_behind_a_long_address_too(tmp_path):
    with open_small(tmp_path / "s", store_host="[2001:db8::1]:10911") as store:
        for _ in range(2):
            put = store.put("T", b"durable", flush="sync")
        assert store._parts.flusher.commits.base == 0
        assert read_checkpoint(store.path).physic_timestamp == put.store_timestamp_ms


@pytest.mark.usefixtures("alone")
def test_threads_wait_for_one_another_in_the_kernel(store):
    ends: list[int] = []

    def work() -> None:
        for _ in range(25):
            put = store.put("T", b"x", flush="sync")
            assert store._parts.control.flushed >= put.physical_offset + put.size_bytes
            ends.append(put.physical_offset)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ends)) == 100


def test_the_next_segment_is_led_by_the_module_once(store):
    commits = store._parts.flusher.commits
    asked, reach = [], store._parts.appender.policy.reach
    store._parts.appender.policy.reach = lambda *given: (asked.append(given), reach(*given))
    for _ in range(12):
        store.put("T", body_for(4000), flush="sync")
    assert commits.base == store.wrote_position // 16384 * 16384 > 0
    assert len(asked) == commits.base // 16384


def test_a_failed_sync_of_the_kernel_makes_the_store_read_only(tmp_path):
    """The range has a page that is not mapped, so msync fails."""
    with open_small(tmp_path / "s", mapped_file_size_commit_log_bytes=1 << 20) as store, Process() as other:
        settings = {**SETTINGS, "mapped_file_size_commit_log_bytes": 1 << 20}
        other.do(OPEN, path=str(store.path), settings=settings)
        other.do("put = store.put('T', b'first', flush='sync')")
        other.do(UNMAP_PAGE)
        with pytest.raises(Failed, match="FlushFailedError: the disk failed with Cannot allocate memory"):
            other.do("store.put('T', b'x', flush='sync')")
        assert store._parts.control.flushed == other.do("put.physical_offset + put.size_bytes")
        with pytest.raises(cystore.FlushFailedError):
            store.put("T", b"refused")
        other.kill()
        with pytest.raises(cystore.NotDurableError):
            store.close()


def test_what_a_dead_leader_left_is_repaired_before_the_next_sync(store):
    control = store._parts.control
    with Process() as other:
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.do("turn = control.held('flush'); turn.__enter__() is turn")
        other.kill()
    put = store.put("T", b"x", flush="sync")
    assert control.flushed == put.physical_offset + put.size_bytes
    assert not control.repair_is_due("flush")


def test_the_wait_behind_a_leader_ends_by_its_time(tmp_path):
    with open_small(tmp_path / "s", sync_flush_timeout_ms=150) as store, Process() as other:
        store.put("T", b"first", flush="sync")
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.do("turn = control.held('flush'); turn.__enter__() is turn")
        with pytest.raises(StoreTimeoutError, match="not flushed after 150 ms"):
            store.put("T", b"x", flush="sync")
        other.do("turn.__exit__(None, None, None)")


@pytest.mark.parametrize("limit", ["slave_timeout_ms", "sync_flush_timeout_ms"])
def test_the_kernel_waits_no_longer_than_a_put_may(tmp_path, limit):
    with open_small(tmp_path / "s", **{limit: 7}) as store:
        assert store._parts.flusher.commits.slice_ms == 7


def test_a_signal_ends_the_wait_behind_a_leader(store):
    def handler(*_: object) -> None:
        raise ZeroDivisionError

    def interrupt() -> None:
        while not store._parts.appender.active_calls:
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    try:
        with Process() as other:
            other.do(OPEN, path=str(store.path), settings=SETTINGS)
            other.do("turn = control.held('flush'); turn.__enter__() is turn")
            thread.start()
            with pytest.raises(ZeroDivisionError):
                store.put("T", b"x", flush="sync")
            other.do("turn.__exit__(None, None, None)")
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_store_that_was_moved_acknowledges_nothing(store):
    moved = store.path.rename(store.path.with_name("moved"))
    try:
        with pytest.raises(StoreMovedError):
            store.put("T", b"x", flush="sync")
    finally:
        moved.rename(store.path)


def test_a_wait_for_the_disk_is_not_one_for_slaves(tmp_path):
    """The kernel's wait ends behind another leader. When the module looks, that leader has flushed, and the slave that
    the kernel saw is gone."""
    with open_small(tmp_path / "s", flush_disk_type="sync") as store, Process() as other:
        store.put("T", b"first")
        control, policy = store._parts.control, store._parts.appender.policy
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.do("turn = control.held('flush'); turn.__enter__() is turn")
        reach = policy.reach

        def late(end: int, *given: object) -> None:
            other.do("turn.__exit__(None, None, None)")
            store._parts.flusher.flush_to(end)
            control.replicas = 0
            reach(end, *given)

        policy.reach = late
        control.replicas = 1
        with pytest.raises(SlaveNotAvailableError, match="no slave is connected"):
            store.put("T", b"x", flush="replicated")


def test_a_wait_for_a_slave_that_was_there_ends_by_its_time(tmp_path):
    with open_small(tmp_path / "s", flush_disk_type="sync", slave_timeout_ms=7) as store:
        store.put("T", b"first")
        control, policy = store._parts.control, store._parts.appender.policy
        reach = policy.reach

        def alone(*given: object) -> None:
            control.replicas = 0
            reach(*given)

        policy.reach = alone
        control.replicas = 1
        with pytest.raises(FlushSlaveTimeoutError, match="within 7 ms"):
            store.put("T", b"x", flush="replicated")
