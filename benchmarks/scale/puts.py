"""The slowest put beside cleaning, dispatch and flushes of a store with many queues, and the greatest age of an
unflushed byte."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import cystore

INTERVAL_MS = 500
SEGMENT_BYTES = 16 << 20
COPY_BYTES = 1 << 10


def _open(root: Path, **more: Any) -> cystore.MessageStore:
    return cystore.open(
        root,
        max_queues=100_000,
        mapped_file_size_commit_log_bytes=SEGMENT_BYTES,
        flush_interval_commit_log_ms=INTERVAL_MS,
        flush_commit_log_thorough_interval_ms=INTERVAL_MS,
        **more,
    )


def _mapped(path: Path, length: int) -> mmap.mmap:
    """A mapped file with all its pages in memory."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, length)
        found = mmap.mmap(file.fileno(), length)
    found[:] = bytes(length)
    return found


def _copies(
    path: Path,
    ready: Barrier,
    seconds: float,
    memory_ns: Synchronized[int],
    mapped_ns: Synchronized[int],
) -> None:
    """The slowest turns of a loop that copies a record's bytes, into memory and into a mapped file on the store's disk,
    round after round from its beginning. They show this machine's delays of any loop."""
    source, target = ctypes.create_string_buffer(COPY_BYTES), ctypes.create_string_buffer(COPY_BYTES)
    mapped = _mapped(path, SEGMENT_BYTES)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    memory = file = at = 0
    ready.wait()
    until = time.time() + seconds
    while time.time() < until:
        begun = time.perf_counter_ns()
        ctypes.memmove(target, source, COPY_BYTES)
        between = time.perf_counter_ns()
        ctypes.memmove(begin + at, source, COPY_BYTES)
        memory, file = max(memory, between - begun), max(file, time.perf_counter_ns() - between)
        at = (at + COPY_BYTES) % SEGMENT_BYTES
    memory_ns.value, mapped_ns.value = memory, file


def _sync_copies(path: Path, ready: Barrier, seconds: float) -> None:
    """Syncs the loop's file as often as the log is flushed."""
    with path.open("r+b") as file:
        ready.wait()
        until = time.time() + seconds
        while time.time() < until:
            time.sleep(INTERVAL_MS / 1000)
            os.fdatasync(file.fileno())


def waited_ns(fd: int) -> int:
    """The time that the thread of an open `/proc/.../schedstat` has waited for a processor."""
    return int(os.pread(fd, 100, 0).split()[1])


def _puts(
    root: Path,
    queues: int,
    ready: Barrier,
    seconds: float,
    worst_ns: Synchronized[int],
    own_ns: Synchronized[int],
) -> None:
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    with _open(root, services="none") as store:
        worst, own, number, body = 0, 0, 0, b"x" * 1000
        ready.wait()
        until = time.time() + seconds
        while time.time() < until:
            waited, begun = waited_ns(schedstat), time.perf_counter_ns()
            store.put("T", body, queue_id=number % queues)
            took = time.perf_counter_ns() - begun
            if took > own:
                own = max(own, took - (waited_ns(schedstat) - waited))
            worst = max(worst, took)
            number += 1
        worst_ns.value, own_ns.value = worst, own
    os.close(schedstat)


class _Syncs:
    """The times at which this process's flusher waited for the disk, and the number of synced bytes."""

    def __init__(self, store: cystore.MessageStore) -> None:
        flusher = store._attached().flusher
        self._times: list[tuple[float, float]] = []
        self._since: float | None = None
        self.bytes, plain = 0, flusher._segments
        flusher._segments = lambda begin, end: (_Timed(each, self) for each in plain(begin, end))  # type: ignore

    def run(self, segment: Any, begin: int, end: int) -> None:
        self._since = since = time.perf_counter()
        try:
            segment.sync_range(begin, end)
        finally:
            self._since = None
            self._times.append((since, time.perf_counter()))
            self.bytes += end - begin

    def seconds(self, begin: float, end: float) -> float:
        """The part of this time in which the flusher waited for the disk."""
        since = self._since
        times = [*self._times[-200:], *([] if since is None else [(since, end)])]
        return sum(max(min(last, end) - max(first, begin), 0.0) for first, last in times)

    def mib_s(self) -> float:
        """The disk's work."""
        took = sum(end - begin for begin, end in self._times)
        return self.bytes / took / (1 << 20) if took else 0.0


class _Timed:
    """A segment whose syncs are timed."""

    def __init__(self, segment: Any, syncs: _Syncs) -> None:
        self._segment, self._syncs = segment, syncs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segment, name)

    def sync_range(self, begin: int, end: int) -> None:
        self._syncs.run(self._segment, begin, end)


def _watch(store: cystore.MessageStore, until: float) -> dict[str, float]:
    """The greatest age of the oldest unflushed byte in ms, as measured and without the disk's time for syncs."""
    seen: list[tuple[float, int]] = []
    syncs, oldest, own = _Syncs(store), 0.0, 0.0
    while time.time() < until:
        now, at = time.perf_counter(), store.stats()
        seen.append((now, at["wrote"]))
        while seen and seen[0][1] <= at["flushed"]:
            seen.pop(0)
        if seen:
            age = now - seen[0][0]
            oldest, own = max(oldest, age), max(own, age - syncs.seconds(seen[0][0], now))
        time.sleep(0.01)
    return {"unflushed_ms": oldest * 1000, "unflushed_own_ms": own * 1000, "disk_mib_s": syncs.mib_s()}


def _clean(store: cystore.MessageStore) -> None:
    store.clean()


def _dispatch(store: cystore.MessageStore) -> None:
    store.dispatch()


def _flush(store: cystore.MessageStore) -> None:
    store.dispatch()
    store.checkpoint()


CLEANING, BACKLOG = "cleaning of expired segments", "dispatch of a backlog"
WORK: dict[str, Callable[[cystore.MessageStore], None]] = {
    CLEANING: _clean,
    BACKLOG: _dispatch,
    "queue flush": _flush,
}


def _repeat(work: Callable[[cystore.MessageStore], None], store: cystore.MessageStore, until: float) -> None:
    while time.time() < until:
        work(store)
        time.sleep(0.001)


def _leave_behind(store: cystore.MessageStore, queues: int, backlog_bytes: int) -> None:
    """Makes a backlog of `backlog_bytes`, as behind a stopped dispatcher."""
    batch = [
        cystore.Message(topic="T", queue_id=number % queues, body=b"x" * 1000) for number in range(10_000)
    ]
    with store._attached().control.held("dispatch"):
        while store.stats()["dispatch_behind_bytes"] < backlog_bytes:
            store.put_many(batch)
    store.flush_log()


def beside(root: Path, number: int, queues: int, seconds: float, backlog_bytes: int) -> dict[str, float]:
    """One kind of work: the slowest put and the slowest copy in ms, and the oldest unflushed byte. All queues have
    their files."""
    name, work = list(WORK.items())[number]
    context = multiprocessing.get_context("spawn")
    reserved = {"file_reserved_time_h": 0} if name == CLEANING else {}
    with _open(root, services=("flush", "allocate"), **reserved) as store:
        store.put_many([cystore.Message(topic="T", queue_id=n, body=b"x") for n in range(queues)])
        store.dispatch()
        store.flush()
        if name == BACKLOG:
            _leave_behind(store, queues, backlog_bytes)
        begun, ready = store.wrote_position, context.Barrier(4)
        put_ns, own_ns, copy_ns, mapped_ns = (context.Value("q", 0) for _ in range(4))
        copies = root.with_name(root.name + "-copies")
        _mapped(copies, SEGMENT_BYTES).close()
        processes = [
            context.Process(target=_puts, args=(root, queues, ready, seconds, put_ns, own_ns)),
            context.Process(target=_copies, args=(copies, ready, seconds, copy_ns, mapped_ns)),
            context.Process(target=_sync_copies, args=(copies, ready, seconds)),
        ]
        for one in processes:
            one.start()
        ready.wait()
        until = time.time() + seconds
        worker = threading.Thread(target=_repeat, args=(work, store, until))
        worker.start()
        unflushed = _watch(store, until)
        for one in (*processes, worker):
            one.join()
        copies.unlink()
        return {
            "put_ms": put_ns.value / 1e6,
            "put_own_ms": own_ns.value / 1e6,
            "copy_ms": copy_ns.value / 1e6,
            "mapped_ms": mapped_ns.value / 1e6,
            **unflushed,
            "interval_ms": INTERVAL_MS,
            "mib_s": (store.wrote_position - begun) / seconds / (1 << 20),
        }
