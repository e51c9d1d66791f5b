"""How long the store stops other threads of a process: the longest time for which one call kept the interpreter's lock.

A second thread asks for the lock all the time, with a processor of its own. The time from one look to the next is the
time for which the thread that calls the store kept the lock, less the time for which either of the two waited for a
processor. `tests/unit/native/test_other_threads.py` shows that the lock is not kept over waits for the disk.

Each piece of work is measured several times. What the store does in a piece, it does each time. A machine that is busy,
or a virtual one, stops threads at other moments. So the shortest time counts for a piece, and the longest of all pieces
for the work. A loop of Python in such pieces shows what is left of the machine.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import cystore
from benchmarks.scale.puts import waited_ns

BATCH = 500_000
LARGE_BYTES = 4 << 20
TRIES = 10
ENOUGH_MS = 0.5  # then a piece is not tried again
PIECES = 50
ASK_S = 1e-5  # the second thread asks for the lock after this time
LIMIT_MS = 5.0
LONGEST_MS = 1e9
PYTHON = "a loop of Python"

Work = Callable[[], object]


def longest_ms(*pieces: Work) -> float:
    """The longest time for which a piece of work kept the lock each time."""
    return max(map(_shortest_ms, pieces))


def _shortest_ms(work: Work) -> float:
    shortest = LONGEST_MS
    for _ in range(TRIES):
        shortest = min(shortest, _longest_ms(work))
        if shortest <= ENOUGH_MS:
            break
    return shortest


def _longest_ms(work: Work) -> float:
    waits, longest = f"/proc/self/task/{threading.get_native_id()}/schedstat", 0
    begun, done = threading.Event(), threading.Event()

    def look() -> None:
        nonlocal longest
        os.sched_setaffinity(threading.get_native_id(), {second})
        with (
            open(waits, "rb", buffering=0) as theirs,
            open("/proc/thread-self/schedstat", "rb", buffering=0) as own,
        ):
            fds = theirs.fileno(), own.fileno()
            waited, before = [waited_ns(fd) for fd in fds], time.perf_counter_ns()
            ended = False
            begun.set()
            while not ended:
                ended = done.is_set()
                waited_now, now = [waited_ns(fd) for fd in fds], time.perf_counter_ns()
                kept = now - before - max(after - at for after, at in zip(waited_now, waited, strict=True))
                longest = max(longest, kept)
                before, waited = now, waited_now

    usual, processors = sys.getswitchinterval(), os.sched_getaffinity(0)
    first, second = (sorted(processors) * 2)[:2]
    os.sched_setaffinity(0, {first})
    sys.setswitchinterval(ASK_S)
    looking = threading.Thread(target=look)
    looking.start()
    begun.wait()
    try:
        work()
    finally:
        done.set()
        looking.join()
        sys.setswitchinterval(usual)
        os.sched_setaffinity(0, processors)
    return longest / 1e6


def _consume(messages: Iterable[cystore.Message]) -> int:
    return sum(1 for _ in messages)


def _scans(store: cystore.MessageStore) -> list[Work]:
    """A scan of the last batch, in pieces."""
    places = [found.physical_offset or 0 for found in store.scan()]
    begins = [*places[-BATCH :: max(min(len(places), BATCH) // PIECES, 1)], store.wrote_position]
    return [
        lambda begin=begin, end=end: _consume(store.scan(begin, end))  # type: ignore[misc]
        for begin, end in pairwise(begins)
    ]


def stand_still(root: Path, scale: int = 1) -> dict[str, float]:
    """For each kind of call, the time in ms for which other threads stood still."""
    with cystore.open(root, services="none", mapped_file_size_commit_log_bytes=256 << 20) as store:
        small = [
            cystore.Message(topic="T", queue_id=n % 8, body=b"x" * 100, keys=(f"k{n}",))
            for n in range(BATCH // scale)
        ]
        large, changing = b"x" * LARGE_BYTES, bytearray(LARGE_BYTES)
        results: list[object] = []  # else the interpreter would free half a million of them in one piece
        return {
            PYTHON: longest_ms(*[lambda: sum(n for n in range(BATCH // scale))] * PIECES),
            "put of 4 MiB": longest_ms(lambda: store.put("L", large)),
            "put of a bytearray of 4 MiB": longest_ms(lambda: store.put("L", changing)),
            f"put_many of {len(small):,}": longest_ms(lambda: results.append(store.put_many(small))),
            "dispatch": longest_ms(store.dispatch),
            "flush": longest_ms(store.flush),
            "scan, small records": longest_ms(*_scans(store)),
            "get, 4 MiB": longest_ms(lambda: store.get("L", 0, 0)),
            "get": longest_ms(lambda: [store.get("T", 0, at, 256) for at in range(0, 10_000, 256)]),
            "query": longest_ms(lambda: [store.query("T", f"k{n}") for n in range(2_000)]),
            "clean": longest_ms(store.clean),
        }
