"""The slowest put beside cleaning, dispatch and flushes of a store with many queues, and how old the oldest unflushed byte gets."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
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


def _copies(until: float, worst_ns: Synchronized[int]) -> None:
    """The slowest turn of a loop that copies a record's worth of bytes: what this machine does to any loop."""
    source, target = ctypes.create_string_buffer(COPY_BYTES), ctypes.create_string_buffer(COPY_BYTES)
    worst = 0
    before = time.perf_counter_ns()
    while time.time() < until:
        ctypes.memmove(target, source, COPY_BYTES)
        now = time.perf_counter_ns()
        worst, before = max(worst, now - before), now
    worst_ns.value = worst


def _waited_ns(fd: int) -> int:
    """How long this thread has stood in line for a processor."""
    return int(os.pread(fd, 100, 0).split()[1])


def _puts(
    root: Path, queues: int, until: float, worst_ns: Synchronized[int], own_ns: Synchronized[int]
) -> None:
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    with _open(root, services="none") as store:
        worst, own, number, body = 0, 0, 0, b"x" * 1000
        while time.time() < until:
            waited, begun = _waited_ns(schedstat), time.perf_counter_ns()
            store.put("T", body, queue_id=number % queues)
            took = time.perf_counter_ns() - begun
            if took > own:
                own = max(own, took - (_waited_ns(schedstat) - waited))
            worst = max(worst, took)
            number += 1
        worst_ns.value, own_ns.value = worst, own
    os.close(schedstat)


def _watch(store: cystore.MessageStore, until: float) -> float:
    """The greatest age of the oldest byte that is not flushed, in ms."""
    seen: list[tuple[float, int]] = []
    oldest = 0.0
    while time.time() < until:
        now, at = time.perf_counter(), store.stats()
        seen.append((now, at["wrote"]))
        while seen and seen[0][1] <= at["flushed"]:
            seen.pop(0)
        if seen:
            oldest = max(oldest, now - seen[0][0])
        time.sleep(0.01)
    return oldest * 1000


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
    """A backlog of so many bytes: as behind a dispatcher that stands still."""
    batch = [
        cystore.Message(topic="T", queue_id=number % queues, body=b"x" * 1000) for number in range(10_000)
    ]
    with store._attached().control.held("dispatch"):
        while store.stats()["dispatch_behind_bytes"] < backlog_bytes:
            store.put_many(batch)
    store.flush_log()


def beside(root: Path, number: int, queues: int, seconds: float, backlog_bytes: int) -> dict[str, float]:
    """One kind of work: the slowest put and the slowest copy in ms, and the oldest unflushed byte. All queues have their files."""
    name, work = list(WORK.items())[number]
    context = multiprocessing.get_context("spawn")
    reserved = {"file_reserved_time_h": 0} if name == CLEANING else {}
    with _open(root, services=("flush", "allocate"), **reserved) as store:
        store.put_many([cystore.Message(topic="T", queue_id=n, body=b"x") for n in range(queues)])
        store.dispatch()
        store.flush()
        if name == BACKLOG:
            _leave_behind(store, queues, backlog_bytes)
        begun, until = store.wrote_position, time.time() + 2 + seconds
        put_ns, own_ns, copy_ns = (context.Value("q", 0) for _ in range(3))
        processes = [
            context.Process(target=_puts, args=(root, queues, until, put_ns, own_ns)),
            context.Process(target=_copies, args=(until, copy_ns)),
        ]
        worker = threading.Thread(target=_repeat, args=(work, store, until))
        for one in (*processes, worker):
            one.start()
        oldest = _watch(store, until)
        for one in (*processes, worker):
            one.join()
        return {
            "put_ms": put_ns.value / 1e6,
            "put_own_ms": own_ns.value / 1e6,
            "copy_ms": copy_ns.value / 1e6,
            "unflushed_ms": oldest,
            "interval_ms": INTERVAL_MS,
            "mib_s": (store.wrote_position - begun) / seconds / (1 << 20),
        }
