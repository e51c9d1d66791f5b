"""`python -m benchmarks.store.columns`: a log read as Arrow columns beside the bare scan with checksums, on one core.

Prints rows and bytes a second of CPU time and of wall time, the best of some rounds: other work of the machine costs
wall time.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cystore
from cystore._native.scan.log_walk import LogWalker
from cystore.columns import arrow
from cystore.derived.reading.snapshot import LogRange
from cystore.system import files

TOPICS, BATCH = 3, 1000
POOL_BYTES, STRIDE = 1 << 24, 7919  # bodies are pieces of random bytes, which no format finds again
GOAL_ROWS, GOAL_BYTES = 6.3e6, 2e9


def fill(folder: Path, count: int, record_bytes: int, **settings: Any) -> None:
    """Messages like an application's, each with a different body and some properties."""
    pool = random.Random(1).randbytes(POOL_BYTES + record_bytes)

    def body_of(number: int) -> bytes:
        begin = number * STRIDE % POOL_BYTES
        return pool[begin : begin + record_bytes - 150]

    with cystore.open(folder, services="none", **settings) as store:
        for first in range(0, count, BATCH):
            store.put_many(
                [
                    cystore.Message(
                        topic=f"orders-{number % TOPICS}",
                        body=body_of(number),
                        keys=(f"order-{number}",),
                        tags="new",
                        properties={"task": "app.add"},
                    )
                    for number in range(first, first + BATCH)
                ]
            )


def scan(ranges: list[LogRange]) -> int:
    """Every record parsed and its checksum checked, nothing kept."""
    rows = 0
    for part in ranges:
        length = Path(part.path).stat().st_size
        segment = files.map_file(Path(part.path), part.base, length, writable=False)
        scanner = LogWalker(follow_queues=False)
        scanner.limit = part.end
        scanner.move(part.begin, part.base + part.file_bytes)
        scanner.run(segment, length, part.base)
        rows += scanner.record_count
    return rows


def columns(names: tuple[str, ...], *, check_checksum: bool = True) -> Callable[[list[LogRange]], int]:
    settings = arrow.ReadSettings(columns=names, check_checksum=check_checksum)
    return lambda ranges: sum(batch.num_rows for batch in arrow.read_ranges(ranges, settings))


ROWS: dict[str, Callable[[list[LogRange]], int]] = {
    "bare scan with checksum": scan,
    "all columns": columns(tuple(arrow.COLUMNS)),
    "all columns, no checksum": columns(tuple(arrow.COLUMNS), check_checksum=False),
    "offset and timestamp": columns(("offset", "timestamp")),
    "value": columns(("value",)),
    "properties": columns(("properties",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store.columns", description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000, help="messages (%(default)s)")
    parser.add_argument("--record-bytes", type=int, default=300, help="of each record, about (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        fill(Path(folder), options.count, options.record_bytes)
        with cystore.open(folder, services="none") as store:
            snapshot = store.snapshot()
            ranges = arrow.plan_ranges(snapshot, arrow.RowFilter())
        size = sum(part.size_bytes for part in ranges)
        print(f"{options.count:,} records of {size / options.count:.0f} bytes, best of {options.rounds}")
        print(f"{'':<28}{'M rows/s CPU':>14}{'GB/s CPU':>10}{'M rows/s wall':>15}")
        best: dict[str, tuple[float, float]] = {}
        for _ in range(options.rounds):
            for name, run in ROWS.items():
                wall, cpu = time.perf_counter(), time.process_time()
                rows = run(ranges)
                took = time.perf_counter() - wall, time.process_time() - cpu
                if rows != options.count:
                    raise SystemExit(f"{name}: {rows} rows, not {options.count}")
                before = best.get(name, took)
                best[name] = min(took[0], before[0]), min(took[1], before[1])
        for name, (wall, cpu) in best.items():
            print(
                f"{name:<28}{options.count / cpu / 1e6:>14.2f}{size / cpu / 1e9:>10.2f}"
                f"{options.count / wall / 1e6:>15.2f}"
            )
        cpu = best["all columns"][1]
        reached = options.count / cpu >= GOAL_ROWS or size / cpu >= GOAL_BYTES
        print(
            f"goal: {GOAL_ROWS / 1e6} M rows/s or {GOAL_BYTES / 1e9} GB/s for all columns: "
            f"{'reached' if reached else 'MISSED'}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
