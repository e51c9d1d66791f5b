"""How long the store stops other threads of a process: the longest time for which one call kept the interpreter's lock.

A second thread asks for the lock all the time. Each time it gets the lock, it reads the processor time of the thread
that calls the store. The growth since the last look is the time for which that thread kept the lock. Processor time
leaves out other work on the machine. It also leaves out waits for the disk; `tests/unit/native/test_other_threads.py`
shows that the lock is not kept over them. The time for which the second thread waited for a processor does not count.
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
    """The longest piece of processor time that `work` took with the lock, the best of some tries."""
    return min(_longest_ms(work) for _ in range(TRIES))


def _longest_ms(work: Callable[[], object]) -> float:
    clock, done = time.pthread_getcpuclockid(threading.get_ident()), threading.Event()
    longest, before = 0, time.clock_gettime_ns(clock)

    def look() -> None:
        nonlocal longest, before
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as schedstat:
            waited_before = waited_ns(schedstat.fileno())
            while True:
                ended, waited = done.is_set(), waited_ns(schedstat.fileno())
                now = time.clock_gettime_ns(clock)
                # This thread may wait on either side of its clock.
                longest = max(longest, now - before - (waited_ns(schedstat.fileno()) - waited_before))
                before, waited_before = now, waited
                if ended:
                    break
                os.sched_yield()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(ASK_S)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        work()
    finally:
        done.set()
        looking.join()
        sys.setswitchinterval(usual)
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
