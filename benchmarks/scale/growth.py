"""`python -m benchmarks growth`: whether put, get and query cost the same in a large store as in a small one.

The messages of a store grow tenfold at a time; other stores have more and more queues, or segments. Each figure is the
median of many short slices, and processor time, because that depends less on other work. Their segments are prepared,
and no service runs. Beside them stand the loads that a get or a query cannot do without: a loop in C, at random places
of a file as large as the store. It shows how much of the growth comes from the processor's caches. The benchmark also
draws the figures, and the distribution of the times of single calls; there, puts with default settings and services
stand beside the prepared ones.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cystore
from benchmarks import native

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "Growth"
BODY = b"0123456789abcdef" * 2
SLICES, SLICE = 60, 500
LOADS = 300_000
SINGLE_CALLS = 100_000
FLAT = 0.15
FEW_MESSAGES = 100_000
RECORD_BYTES = 180  # about the length of a record
SLOTS_BYTES, ENTRY_BYTES = 20_000_000, 20  # of an index file; an entry of a queue has as many bytes
LINE_BYTES = 64  # of the processor's caches
TABLE_BYTES = 256  # of a queue in the control block
BATCH, QUEUE_BATCH = 32, 8  # messages of a get; the smallest of many queues has ten
SEGMENT_BYTES = 1 << 20
SEGMENTS_AHEAD_BYTES = 8 << 20  # more than the puts that are measured
OPERATIONS = ("put", "get", "query")
FLOORS = ("get's loads", "query's loads")
DEFAULTS = "put, default settings"
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "worst": 1}


def message(number: int, queues: int) -> cystore.Message:
    return cystore.Message(topic=TOPIC, body=BODY, queue_id=number % queues, keys=(f"k{number}",))


def open_store(root: Path, **settings: Any) -> cystore.MessageStore:
    ahead = 64 << 20
    wanted = {"allocate_ahead_bytes": ahead, "populate_ahead_bytes": ahead, "max_queues": 20_000}
    return cystore.open(root, services=(), **{**wanted, **settings})


def fill(store: cystore.MessageStore, first: int, end: int, queues: int) -> None:
    for start in range(first, end, 1000):
        store.put_many([message(number, queues) for number in range(start, min(start + 1000, end))])
    store.dispatch()


def calls_of(
    store: cystore.MessageStore, queues: int, batch: int = BATCH
) -> dict[str, Callable[[int], object]]:
    """One call of each operation, by the number of a message."""
    put, get, query = store.put, store.get, store.query
    keys = ("more",)
    return {
        "put": lambda number: put(TOPIC, BODY, queue_id=number % queues, keys=keys),
        "get": lambda number: get(TOPIC, number % queues, number // queues, batch),
        "query": lambda number: query(TOPIC, f"k{number}"),
    }


def measure(store: cystore.MessageStore, count: int, queues: int, batch: int = BATCH) -> dict[str, float]:
    """Median ns of processor time a call, over slices of calls for messages chosen at random. Each get finds a whole
    batch. The first get of each queue, which looks for the queue's file, comes before."""
    found: dict[str, float] = {}
    for queue in range(queues):
        store.get(TOPIC, queue, 0, 1)
    for name, call in calls_of(store, queues, batch).items():
        draw = random.Random(count)
        allocator = store._attached().allocator
        while name == "put" and allocator.run_once().done:
            pass
        taken = []
        for _ in range(SLICES):
            numbers = [draw.randrange(count - batch * queues) for _ in range(SLICE)]
            begin = time.thread_time_ns()
            for number in numbers:
                call(number)
            taken.append((time.thread_time_ns() - begin) / SLICE)
        store.dispatch()
        found[name] = statistics.median(taken[SLICES // 6 :])
    return found


# A part of a store: its bytes, the bytes that are loaded at one place, and the number of such places.
Part = tuple[int, int, int]


def load_ns(folder: Path, *chains: tuple[Part, ...]) -> list[float]:
    """ns of processor time for the loads of each chain, from a file as large as its parts together. Its pages are as
    small as those of the store."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, max(sum(part for part, _, _ in chain) for chain in chains))
        mapped = mmap.mmap(file.fileno(), 0)
    mapped.madvise(mmap.MADV_RANDOM)
    sum(memoryview(mapped)[:: mmap.PAGESIZE])  # brings every page in
    found, begin = [], ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    for chain in chains:
        columns = [(ctypes.c_int64 * len(chain))(*numbers) for numbers in zip(*chain, strict=True)]
        native.library().load_at_random(begin, *columns, len(chain), LOADS)
        found.append(native.library().load_at_random(begin, *columns, len(chain), LOADS) / LOADS)
    return found


def loads(folder: Path, messages: int) -> dict[str, float]:
    """ns for the loads of one get and of one query."""
    entries, records = messages * ENTRY_BYTES, messages * RECORD_BYTES
    slots = min(messages * LINE_BYTES, SLOTS_BYTES)
    get = (entries, BATCH * ENTRY_BYTES, 1), (records, BATCH * RECORD_BYTES, 1)
    query = (slots, 4, 1), (entries, ENTRY_BYTES, 1), (records, RECORD_BYTES, 1)
    return dict(zip(FLOORS, load_ns(folder, get, query), strict=True))


def queue_loads(folder: Path, queues: int) -> dict[str, float]:
    """ns for the loads of one get from a store of many queues: the queue's line in the table, its entries, and records
    that lie together only if there is one queue."""
    records = FEW_MESSAGES * RECORD_BYTES
    apart = (QUEUE_BATCH * RECORD_BYTES, 1) if queues == 1 else (RECORD_BYTES, QUEUE_BATCH)
    pages = max(-(-FEW_MESSAGES * ENTRY_BYTES // queues // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    chain = (
        (queues * TABLE_BYTES, LINE_BYTES, 1),
        (queues * pages, QUEUE_BATCH * ENTRY_BYTES, 1),
        (records, *apart),
    )
    return dict(zip(FLOORS, load_ns(folder, chain), strict=False))


def single_calls(call: Callable[[int], object], count: int, name: str) -> list[int]:
    """ns of single calls for messages chosen at random, sorted; they include the clock's own time."""
    draw = random.Random(name)
    numbers = [draw.randrange(count) for _ in range(SINGLE_CALLS)]
    taken, clock = [], time.perf_counter_ns
    for number in numbers:
        begin = clock()
        call(number)
        taken.append(clock() - begin)
    return sorted(taken)


def single(store: cystore.MessageStore, count: int) -> dict[str, list[int]]:
    """ns of single calls of each operation."""
    found = {}
    for name, call in calls_of(store, 1).items():
        found[name] = single_calls(call, count, name)
        store.dispatch()
    return found


def default_puts(folder: Path, count: int) -> dict[str, Any]:
    """ns of single puts into a store with default settings and services."""
    with cystore.open(folder) as store:
        return {DEFAULTS: single_calls(calls_of(store, 1)["put"], count, DEFAULTS)}


def quantiles(taken: list[int]) -> dict[str, int]:
    """Some of the sorted times, by name."""
    return {name: taken[min(int(len(taken) * part), len(taken) - 1)] for name, part in QUANTILES.items()}


def by_messages(folder: Path, upto: int) -> dict[str, Any]:
    rows, count = [], 0
    with open_store(folder) as store:
        while count < upto:
            size = max(10 * count, FEW_MESSAGES)
            fill(store, count, size, 1)
            count = store.next_queue_offset(TOPIC, 0)
            rows.append({"x": size, **measure(store, size, 1), **loads(folder.parent, size)})
        return {"rows": rows, "single": single(store, size)}


def by_queues(folder: Path, queues: int) -> dict[str, Any]:
    with open_store(folder) as store:
        fill(store, 0, FEW_MESSAGES, queues)
        measured = measure(store, FEW_MESSAGES, queues, QUEUE_BATCH)
        return {"x": queues, **measured, **queue_loads(folder.parent, queues)}


def by_segments(folder: Path, segments: int) -> dict[str, Any]:
    """Segments of the same length, so the messages become more, too."""
    count = segments * SEGMENT_BYTES // RECORD_BYTES
    with open_store(
        folder, mapped_file_size_commit_log_bytes=SEGMENT_BYTES, allocate_ahead_bytes=SEGMENTS_AHEAD_BYTES
    ) as store:
        fill(store, 0, count, 1)
        return {"x": segments, **measure(store, count, 1), **loads(folder.parent, count)}


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "messages": by_messages,
    "queues": by_queues,
    "segments": by_segments,
    "defaults": default_puts,
}


def run(part: str, size: int, folder: Path) -> dict[str, Any]:
    """Runs a part in a process of its own, with an empty folder."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "benchmarks.scale.growth", part, str(size), scratch]
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def table(what: str, rows: list[dict[str, Any]]) -> list[str]:
    columns = [name for name in (*OPERATIONS, *FLOORS) if name in rows[0]]
    lines = [f"{what:>12}" + "".join(f"{name:>16}" for name in columns)]
    for row in rows:
        shown = [f"{row[name]:,.0f} {row[name] / rows[0][name] - 1:+.0%}" for name in columns]
        lines.append(f"{row['x']:>12,}" + "".join(f"{text:>16}" for text in shown))
    for name in OPERATIONS:
        most = max(abs(row[name] / rows[0][name] - 1) for row in rows)
        lines.append(f"  {name}: within {most:.0%}; goal {FLAT:.0%}: {'pass' if most <= FLAT else 'MISS'}")
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--upto", type=int, default=10_000_000, help="messages of the largest store")
    parser.add_argument("--quick", action="store_true", help="only shows that everything runs")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plots", type=Path, help="write growth.svg and latency.svg into this folder")
    options = parser.parse_args(arguments)
    queues, segments = ([1, 100], [1, 10]) if options.quick else ([1, 100, 10_000], [1, 10, 100, 1000])
    grown = run("messages", FEW_MESSAGES if options.quick else options.upto, options.folder)
    figures = {
        "messages": grown["rows"],
        "queues": [run("queues", count, options.folder) for count in queues],
        "segments": [run("segments", count, options.folder) for count in segments],
    }
    defaults = run("defaults", SINGLE_CALLS, options.folder)
    singles = {name: grown["single"][name] for name in OPERATIONS} | defaults
    print("ns of processor time a call; behind it the difference from the smallest store")
    for what, rows in figures.items():
        print("\n".join(table(what, rows)))
    print(f"{'single calls, ns':<24}" + "".join(f"{name:>12}" for name in QUANTILES))
    for name, taken in singles.items():
        print(f"  {name:<22}" + "".join(f"{value:>12,}" for value in quantiles(taken).values()))
    if options.json:
        latencies = {name: quantiles(taken) for name, taken in singles.items()}
        options.json.write_text(json.dumps({**figures, "single_calls_ns": latencies}, indent=1) + "\n")
    if options.plots:
        from benchmarks.suite.plots import draw_growth, draw_latency

        draw_growth(figures, OPERATIONS, options.plots / "growth.svg")
        draw_latency(singles, options.plots / "latency.svg")
    return 0


if __name__ == "__main__":
    part, size, folder = sys.argv[1:]
    print(json.dumps(PARTS[part](Path(folder) / "store", int(size))))
