"""What a slave costs the master's puts: rounds of puts in turns, into a store without a slave and into one beside it.

Both stores are of one process and have the same settings. Before each round everything is done: the slave has all,
all three stores have dispatched, and the pages of all rounds were made before the first one. So a round begins with
nothing left over from the one before, and the ratio of two neighbours is that of the same minute of the machine.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import cystore
from benchmarks.store.loopback import BODY, KEYS, RECORD_BYTES, Loopback, loopback, puts

BEFORE = 3  # rounds before the first one that counts; the new slave gets them
BURST = 100  # puts before the thread sleeps, if they have a pace


class Took(NamedTuple):
    """ns of a put, and of it those for which its thread ran, and was ready and other threads had the processors."""

    ns: float
    ran_ns: float = 0.0
    ready_ns: float = 0.0


class Pair(NamedTuple):
    """Two neighbouring rounds: of a store without a slave, and beside one."""

    alone: Took
    beside: Took
    shipped_ns: float = 0.0  # of a put, until the slave has it
    master_ns: float = 0.0  # of the processors for a put, all threads, until all is dispatched
    slave_ns: float = 0.0

    @property
    def ratio(self) -> float:
        return self.beside.ns / self.alone.ns


class Rounds(NamedTuple):
    pairs: list[Pair]
    backlog_bytes_per_s: float


def room(rounds: int) -> int:
    """For how many rounds each log has room: twice those that it gets."""
    return 2 * (BEFORE + rounds)


def shipped(folder: Path, count: int, rounds: int, pace: int, **settings: Any) -> Rounds:
    """Pairs of rounds of `count` puts, `pace` of them a second. 0: as fast as they go."""
    bytes_ = room(rounds) * count * RECORD_BYTES
    with ExitStack() as stack:
        alone, beside = (
            stack.enter_context(loopback(folder / name, bytes_, **settings)) for name in ("a", "b")
        )
        for pair in (alone, beside):
            pair.make_pages(bytes_ // 2)
            puts(pair.master, BEFORE * count)
            pair.make_pages(rounds * count * RECORD_BYTES)
            pair.settle()
        beside.follow()
        begin, begun = beside.reach(1), time.perf_counter()
        backlog = (beside.reach(beside.control.wrote) - begin) / (time.perf_counter() - begun)
        return Rounds([_pair(alone, beside, count, pace, turn) for turn in range(rounds)], backlog)


def _pair(alone: Loopback, beside: Loopback, count: int, pace: int, turn: int) -> Pair:
    """One pair of rounds; the first store of a pair changes."""
    took: dict[bool, Took] = {}
    costs: list[float] = []
    for slave in (False, True) if turn % 2 == 0 else (True, False):
        pair = beside if slave else alone
        alone.settle()
        beside.settle()
        before, begun = _ran_ns(pair), time.perf_counter()
        took[slave] = _timed(pair.master, count, pace)
        if slave:
            pair.reach(pair.control.wrote)
            shipped_s = time.perf_counter() - begun
            pair.settle()
            costs = [shipped_s * 1e9, *(now - was for now, was in zip(_ran_ns(pair), before, strict=True))]
    return Pair(took[False], took[True], *(ns / count for ns in costs))


def _ran_ns(pair: Loopback) -> tuple[int, int]:
    """For how long the threads of this process and of the slave's ran."""
    return _processor_ns(os.getpid()), 0 if pair.slave is None else _processor_ns(pair.slave.pid)


def _processor_ns(process: int) -> int:
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def _timed(store: cystore.MessageStore, count: int, pace: int) -> Took:
    before = _scheduled()
    took_s = _paced(store, count, pace) if pace else puts(store, count)
    ran, ready = (now - was for now, was in zip(_scheduled(), before, strict=True))
    return Took(took_s * 1e9 / count, ran / count, ready / count)


def _paced(store: cystore.MessageStore, count: int, pace: int) -> float:
    """Seconds of puts, without the thread's sleep between bursts."""
    put, took_s, due = store.put, 0.0, time.perf_counter()
    for done in range(0, count, BURST):
        burst = min(BURST, count - done)
        begun = time.perf_counter()
        for number in range(burst):
            put("BenchTopic", BODY, keys=KEYS[number], tags="TagA")
        took_s += time.perf_counter() - begun
        due += burst / pace
        time.sleep(max(0, due - time.perf_counter()))
    return took_s


def _scheduled() -> list[int]:
    """ns for which this thread ran, and for which it was ready and other threads had the processors."""
    return [int(ns) for ns in Path("/proc/thread-self/schedstat").read_text().split()[:2]]


def slower(pairs: list[Pair]) -> tuple[float, float, float]:
    """By how much a put is slower beside a slave: the median of the pairs, and their quartiles."""
    ratios = [pair.ratio - 1 for pair in pairs]
    low, _, high = quantiles(ratios, n=4)
    return median(ratios), low, high
