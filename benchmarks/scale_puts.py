"""The slowest put beside cleaning, dispatch and flushes of a store with many queues, and how old the oldest unflushed byte gets."""

from __future__ import annotations

import ctypes
import multiprocessing
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


def _puts(root: Path, queues: int, until: float, worst_ns: Synchronized[int]) -> None:
    with _open(root, services="none") as store:
        worst, number, body = 0, 0, b"x" * 1000
        while time.time() < until:
            begun = time.perf_counter_ns()
            store.put("T", body, queue_id=number % queues)
            worst = max(worst, time.perf_counter_ns() - begun)
            number += 1
        worst_ns.value = worst


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


WORK: dict[str, Callable[[cystore.MessageStore], None]] = {
    "cleaning": _clean,
    "dispatch of a backlog": _dispatch,
    "queue flush": _flush,
}


def _repeat(work: Callable[[cystore.MessageStore], None], store: cystore.MessageStore, until: float) -> None:
    while time.time() < until:
        work(store)
        time.sleep(0.001)


def beside(root: Path, queues: int, seconds: float) -> dict[str, dict[str, float]]:
    """For each kind of work: the slowest put and the slowest copy in ms, and the oldest unflushed byte."""
    found = {}
    context = multiprocessing.get_context("spawn")
    for name, work in WORK.items():
        with _open(root, services=("flush", "allocate")) as store:
            store.put_many(
                [cystore.Message(topic="T", queue_id=number, body=b"x") for number in range(queues)]
            )
            until = time.time() + 2 + seconds
            put_ns, copy_ns = context.Value("q", 0), context.Value("q", 0)
            processes = [
                context.Process(target=_puts, args=(root, queues, until, put_ns)),
                context.Process(target=_copies, args=(until, copy_ns)),
            ]
            worker = threading.Thread(target=_repeat, args=(work, store, until))
            for one in (*processes, worker):
                one.start()
            oldest = _watch(store, until)
            for one in (*processes, worker):
                one.join()
            found[name] = {
                "put_ms": put_ns.value / 1e6,
                "copy_ms": copy_ns.value / 1e6,
                "unflushed_ms": oldest,
                "interval_ms": INTERVAL_MS,
            }
    return found
