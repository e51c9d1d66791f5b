"""Goal: what a store costs does not grow out of proportion with its number of queues.

Method: count what was done (pages in the kernel's cache, files mapped, turns under a lock, bytes of memory), never
seconds.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

import cystore
from cystore.derived.dispatch import dispatcher
from cystore.derived.files import consume_queue
from tests.support.process import Process
from tests.support.small_stores import open_small

pytestmark = pytest.mark.disk

PAGE_BYTES = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def cached_pages(path: Path) -> int:
    """How many pages of a file are in the kernel's cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // PAGE_BYTES)
        found = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = _libc.mincore(
                ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), found
            )
        finally:
            del first
        assert not failed
        return sum(page & 1 for page in found)


def test_dispatch_to_many_queues_does_not_fill_the_page_cache(tmp_path: Path) -> None:
    """Seen: with 8 MiB of readahead each page fault filled the cache with the whole queue file, 6 MB of zeros. With
    10,000 queues the kernel gave up other pages for them, and an entry cost 2 to 8 ms of system time."""
    with cystore.open(tmp_path / "store", services="none") as store:
        for queue_id in range(100):
            store.put("T", b"x", queue_id=queue_id)
        store.dispatch()
        found = [
            cached_pages(tmp_path / f"store/consumequeue/T/{queue_id}/{0:020d}") for queue_id in range(100)
        ]
    assert max(found) <= 4


QUEUES = 50
MANY = 10_000  # that many queues cost at most three times what ten cost


def put_each(store: cystore.MessageStore) -> None:
    store.put_many([cystore.Message(topic="T", queue_id=n, body=b"x") for n in range(QUEUES)])


def test_the_file_of_a_queue_is_mapped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: above 4,096 queues a record cost 265 µs instead of 9, because its queue was opened again."""
    assert min(dispatcher.MAX_MAPPED_QUEUES, consume_queue.MAX_OPEN) >= MANY
    used: list[int] = []

    def use(self: dispatcher.Dispatcher) -> None:
        used.append(self._kernel.slot)
        dispatcher.Dispatcher._use_queue_file(self)

    kernel = dispatcher.kernel
    monkeypatch.setitem(dispatcher.FETCH, kernel.NEED_QUEUE_FILE, use)
    monkeypatch.setattr(dispatcher, "MAX_MAPPED_QUEUES", QUEUES)
    with open_small(tmp_path / "s", services="none") as store:
        for _ in range(20):
            put_each(store)
            store.dispatch()
        assert len(store.get("T", QUEUES - 1, 0).messages) == 20
    assert len(used) == len(set(used)) == QUEUES


def test_dispatch_to_many_queues_gives_its_lock_back_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: with 5,000 queues one dispatch held its lock for more than 300 s. New queues are slow, because each needs
    a file; the turn ends when its time is over, not with its megabyte of log."""
    monkeypatch.setattr(dispatcher, "TURN_S", 0.0)  # a record a turn
    with open_small(tmp_path / "s", services="none", mapped_file_size_commit_log_bytes=1 << 20) as store:
        put_each(store)
        turns: list[str] = []
        parts = store._attached()
        control = parts.control

        class Counted:
            def __getattr__(self, name: str) -> object:
                return getattr(control, name)

            def held_if_free(self, name: str, **more: int) -> object:
                turns.append(name)
                return control.held_if_free(name, **more)

        with monkeypatch.context() as counted:
            counted.setattr(parts.dispatcher, "_control", Counted())
            store.dispatch()
        assert store.stats()["dispatch_behind_bytes"] == 0
    assert turns.count("dispatch") >= QUEUES


MEMORY = """
import cystore
def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
before = peak()
store = cystore.open(path, **settings)
"""
SMALL = {"services": "none", "mapped_file_size_consume_queue_bytes": 4000, "max_hash_slot_num": 100}


def memory_of_recovery(root: Path, queues: int, messages: int) -> int:
    """The memory that a process takes to open a store whose only process was killed."""
    settings = {**SMALL, "max_index_num": 2 * messages}
    with Process() as victim:
        victim.do("import cystore; store = cystore.open(path, **settings)", path=str(root), settings=settings)
        victim.do(
            "store.put_many([cystore.Message(topic='T', queue_id=n % queues, body=b'x') for n in range(messages)])",
            queues=queues,
            messages=messages,
        )
        victim.do("store.dispatch(); store.flush()")
        victim.kill()
    with Process() as process:
        process.do(MEMORY, path=str(root), settings=settings)
        assert process.do("store.recovery.queues") == queues
        return int(process.do("peak() - before"))


@pytest.mark.unsanitized
@pytest.mark.slow
def test_recovery_takes_little_memory_for_a_queue(tmp_path: Path) -> None:
    """Seen: 88 KB for each queue."""
    few, many = (memory_of_recovery(tmp_path / str(queues), queues, 6_000) for queues in (10, 2_000))
    assert (many - few) / 2_000 < 20_000
