"""The input of every contestant: one job, the same messages for all, and one way of timing."""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")

TOPIC = "BenchTopic"
TAG = "TagA"
RING = 1024  # messages that are made beforehand and put in turn


@dataclass(frozen=True)
class Job:
    """One measurement: `count` operations of `case` in `folder`, which the runner makes empty before and removes
    after."""

    case: str
    count: int
    folder: str
    body_bytes: int = 100
    keys: int = 1
    batch: int = 1
    sync: bool = False
    processes: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))

    @property
    def path(self) -> Path:
        return Path(self.folder)


@dataclass(frozen=True)
class Measure:
    """`operations` took `seconds`; `facts` are further numbers."""

    operations: int
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ns_per_operation(self) -> float:
        return self.seconds / self.operations * 1e9


def body(size_bytes: int) -> bytes:
    return (b"0123456789abcdef" * (size_bytes // 16 + 1))[:size_bytes]


def keys_of(number: int, count: int) -> tuple[str, ...]:
    """The keys of message `number`. No other message has the first one."""
    return (f"key-{number}", *(f"more{n}-{number}" for n in range(1, count)))


def properties_of(number: int) -> dict[str, str]:
    """The properties of message `number`, for filters."""
    return {"a": str(number % 100), "b": "xyz"[number % 3]}


def light_queues(count: int) -> list[str]:
    return [f"%LMQ%light-{number}" for number in range(count)]


def key_ring(count: int) -> list[tuple[str, ...]]:
    return [keys_of(number, count) for number in range(RING)]


def flat(number: int, job: Job) -> bytes:
    """The message as one value of about a record's length, for stores without properties."""
    header = "\x01".join((TOPIC, TAG, *keys_of(number, job.keys))).encode()
    return header + body(job.body_bytes)


def flat_ring(job: Job) -> list[bytes]:
    return [flat(number, job) for number in range(RING)]


def in_turn(ring: Sequence[Item], count: int) -> list[Item]:
    """`count` items of the ring, in turn. The list is made before the measurement, because walking it takes almost no
    time."""
    return list(islice(cycle(ring), count))


def timed_queries(job: Job, find: Callable[[Sequence[str]], None], **facts: Any) -> Measure:
    """Times `find` for keys of messages chosen at random, after as many others. RocketMQ's run warms up in the same
    way, and the first queries do not meet the load's writes to the disk."""
    before, wanted = keys_to_query(job)
    find(before)
    return timed(len(wanted), lambda: find(wanted), **facts)


def keys_to_query(job: Job) -> tuple[list[str], list[str]]:
    """The keys of the warm-up, and those whose queries are timed."""
    draw, count = random.Random(1), job.options["queries"]
    keys = [keys_of(draw.randrange(job.count), 1)[0] for _ in range(2 * count)]
    return keys[:count], keys[count:]


def timed_reads(job: Job, read: Callable[[Sequence[int]], None], **facts: Any) -> Measure:
    """Times `read` for numbers of messages chosen at random, after as many others."""
    draw = random.Random(1)
    count = job.options["queries"]
    numbers = [draw.randrange(job.count) for _ in range(2 * count)]
    read(numbers[:count])
    wanted = numbers[count:]
    return timed(count, lambda: read(wanted), **facts)


def timed(operations: int, work: Callable[[], Any], **facts: Any) -> Measure:
    """Runs the work once with the garbage collector off."""
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter_ns()
        work()
        taken = time.perf_counter_ns() - begin
    finally:
        gc.enable()
    return Measure(operations, taken / 1e9, facts)


def latencies(begins: Sequence[int], ends: Sequence[int]) -> Measure:
    """The measure of single turns, whose times are in ns. The median is the time of an operation; percentiles are
    facts."""
    taken = sorted(end - begin for begin, end in zip(begins, ends, strict=True))
    p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    return Measure(1, p50 / 1e9, {"p50_us": round(p50 / 1e3, 1), "p99_us": round(p99 / 1e3, 1)})


def in_processes(job: Job, start: Callable[[int], Callable[[], Any]]) -> Measure:
    """Forks `job.processes` children. Each prepares itself with `start(number)`, which returns its work. All children
    begin their work at once.

    The time is from that moment to the end of the last child. A child that fails fails the measurement.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    children = []
    for number in range(job.processes):
        pid = os.fork()
        if pid == 0:
            _child(number, start, ready_write, go_read, go_write)
        children.append(pid)
    os.close(go_read)
    os.close(ready_write)  # so a child that dies early ends the read below
    ready = 0
    while ready < job.processes and (got := os.read(ready_read, job.processes)):
        ready += len(got)
    begin = time.perf_counter_ns()
    os.close(go_write)
    failed = [pid for pid in children if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    taken = time.perf_counter_ns() - begin
    os.close(ready_read)
    if failed or ready < job.processes:
        raise RuntimeError(f"{len(failed)} of {job.processes} processes failed")
    return Measure(job.count, taken / 1e9, {"processes": job.processes})


def _child(
    number: int, start: Callable[[int], Callable[[], Any]], ready_write: int, go_read: int, go_write: int
) -> None:
    """Waits for the end of the go pipe, at which all children begin; never returns."""
    code = 1
    try:
        os.close(go_write)
        work = start(number)
        os.write(ready_write, b".")
        os.read(go_read, 1)
        gc.disable()
        work()
        code = 0
    finally:
        os._exit(code)
