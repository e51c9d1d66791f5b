"""How long the store stops other threads of a process: the longest time for which one call kept the interpreter's lock.

A second thread asks for the lock all the time, with a processor of its own. The time from one look to the next is the
time for which the thread that calls the store kept the lock, less the time for which that one waited for a processor.
`tests/unit/native/test_other_threads.py` shows that the lock is not kept over waits for the disk. Take a quiet machine:
the second thread's own waits for a processor count.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import cystore
from benchmarks.scale.puts import waited_ns

BATCH = 500_000
LARGE_BYTES = 4 << 20
TRIES = 5
ASK_S = 1e-5  # the second thread asks for the lock after this time
LIMIT_MS = 5.0


def longest_ms(work: Callable[[], object]) -> float:
    """The longest time for which `work` kept the lock, the best of some tries."""
    return min(_longest_ms(work) for _ in range(TRIES))


def _longest_ms(work: Callable[[], object]) -> float:
    waits, longest = f"/proc/self/task/{threading.get_native_id()}/schedstat", 0
    begun, done = threading.Event(), threading.Event()

    def look() -> None:
        nonlocal longest
        os.sched_setaffinity(threading.get_native_id(), {second})
        with open(waits, "rb", buffering=0) as schedstat:
            before, waited = time.perf_counter_ns(), waited_ns(schedstat.fileno())
            ended = False
            begun.set()
            while not ended:
                ended = done.is_set()
                waited_now, now = waited_ns(schedstat.fileno()), time.perf_counter_ns()
                longest = max(longest, now - before - (waited_now - waited))
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


def stand_still(root: Path, scale: int = 1) -> dict[str, float]:
    """For each kind of call, the time in ms for which other threads stood still."""
    with cystore.open(root, services="none", mapped_file_size_commit_log_bytes=256 << 20) as store:
        small = [
            cystore.Message(topic="T", queue_id=n % 8, body=b"x" * 100, keys=(f"k{n}",))
            for n in range(BATCH // scale)
        ]
        large, changing = b"x" * LARGE_BYTES, bytearray(LARGE_BYTES)
        results: list[object] = []  # else the interpreter would free half a million of them in one piece
        found = {
            "put of 4 MiB": longest_ms(lambda: store.put("L", large)),
            "put of a bytearray of 4 MiB": longest_ms(lambda: store.put("L", changing)),
            f"put_many of {len(small):,}": longest_ms(lambda: results.append(store.put_many(small))),
            "dispatch": longest_ms(store.dispatch),
            "flush": longest_ms(store.flush),
            "scan, small records": longest_ms(lambda: sum(1 for _ in store.scan())),
            "get, 4 MiB": longest_ms(lambda: store.get("L", 0, 0)),
            "get": longest_ms(lambda: [store.get("T", 0, at, 256) for at in range(0, 10_000, 256)]),
            "query": longest_ms(lambda: [store.query("T", f"k{n}") for n in range(2_000)]),
            "clean": longest_ms(store.clean),
        }
        return found
