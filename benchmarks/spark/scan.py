"""`python -m benchmarks.spark.scan`: reading a store in Spark beside Spark's own reader of uncompressed Parquet, the
same rows.

One local session, warm cache, best wall time of some rounds and the CPU time of that round: the driver, its JVM and the
Python workers. Each round runs every row once, so that other work of the machine meets all rows; the tuples are in the
first rounds only. A DataFrame is planned in the first round, which is not the best one, so planning has rows of its
own. Meanwhile this process has the store open, as users of a store do.

Beside the two stand `binaryFile` with `mapInArrow` (the same decoder over whole segments, which are small enough for
that), a Python data source that yields tuples, the source without checksums, which Parquet's reader does not look at
either, and ready batches: a data source that sends as many rows and reads no log, in batches and tasks of several
sizes. The best of these is the least time of a Python data source here. A source without rows shows how much of it
passes before the first row. Needs a JDK 17 or newer.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cystore
from benchmarks.spark.session import Took, best, session, timed
from benchmarks.store.columns import fill

SEGMENT_BYTES = 64 * 1024 * 1024
MEMORY = "6g"  # binaryFile holds whole segments, and more than once
SLOWEST, SLOW_ROUNDS = "tuples", 2
SCHEMAS = {"two columns": "offset LONG, timestamp TIMESTAMP", "all columns": ""}
GOALS = {"two columns": 0.8, "all columns": 0.45}  # of Parquet's speed
# Rows of a batch, and tasks of a core; 0 tasks: as many as cystore's.
READY = ((4_096, 1), (16_384, 0), (16_384, 1), (16_384, 2), (65_536, 0), (65_536, 1), (262_144, 1))
NO_ROWS = "a source without a row"
SLOW = {"binaryFile, mapInArrow": 3.0, "tuples": 2.0}  # goals: how many times as fast cystore is


def two_columns(frame: Any) -> None:
    frame.selectExpr("max(offset)", "max(timestamp)").collect()


def all_columns(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def entrants(spark: Any, store: Path, parquet: Path, columns: str, count: int, cores: int) -> dict[str, Any]:
    """A DataFrame for each way to read the same rows."""
    from benchmarks.spark.sources import ReadySource, TupleSource, binary_files

    def load(source: str, path: Path = store, **options: Any) -> Any:
        reader = spark.read.format(source).options(**options)
        return (reader.schema(columns) if columns else reader).load(str(path))

    spark.dataSource.register(ReadySource)
    spark.dataSource.register(TupleSource)
    ours = load("cystore")
    partitions = ours.rdd.getNumPartitions()
    ready = {}
    for rows, tasks in sorted({(rows, by * cores or partitions) for rows, by in READY}):
        name = f"ready, {rows:,} rows, {tasks} tasks"
        ready[name] = load("cystore_ready", rows=count, tasks=tasks, batchRows=rows)
    return {
        "parquet": load("parquet", parquet),
        f"cystore, {partitions} tasks": ours,
        "cystore, no checksums": load("cystore", checkChecksum="false"),
        **ready,
        NO_ROWS: load("cystore_ready", rows=0, tasks=cores, batchRows=1),
        "binaryFile, mapInArrow": binary_files(spark, store, ours.schema),
        "tuples": load("cystore_tuples"),
    }


def planning(spark: Any, source: str, path: Path) -> Callable[[], Any]:
    return lambda: spark.read.format(source).load(str(path)).rdd.getNumPartitions()


def measured(frames: dict[str, Any], run: Callable[[Any], None], rounds: int) -> dict[str, Took]:
    found: dict[str, list[Took]] = {name: [] for name in frames}
    for number in range(rounds):
        for name, frame in frames.items():
            if name != SLOWEST or number < SLOW_ROUNDS:
                found[name].append(timed(functools.partial(run, frame)))
    return {name: min(times) for name, times in found.items()}


def show(name: str, took: Took, told: str = "") -> None:
    print(f"{name:<34}{took[0]:8.3f} s wall{took[1]:8.2f} s CPU  {told}".rstrip(), flush=True)


def show_case(case: str, took_by: dict[str, Took]) -> None:
    print(case)
    parquet = took_by["parquet"][0]
    (ours,) = (took[0] for name, took in took_by.items() if name.startswith("cystore, ") and "tasks" in name)
    least = min(took[0] for name, took in took_by.items() if name.startswith("ready"))
    for name, took in took_by.items():
        text = "" if name == "parquet" else f"{parquet / took[0]:.2f} x as fast as Parquet"
        if name in SLOW:
            text = f"cystore is {took[0] / ours:.1f} x as fast{reached(took[0] / ours, SLOW[name])}"
            text += f", the best ready batches {took[0] / least:.1f} x"
        elif took[0] == ours:
            text += reached(parquet / ours, GOALS[case])
        show(f"  {name}", took, text)
    print(f"  the least of any Python data source: {least:.3f} s, {parquet / least:.2f} x as fast as Parquet")


def reached(times: float, goal: float) -> str:
    return f" (goal {goal:g}: {'reached' if times >= goal else 'MISSED'})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.scan", description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000, help="messages (%(default)s)")
    parser.add_argument("--record-bytes", type=int, default=300, help="of each record, about (%(default)s)")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--kept",
        type=Path,
        help="a folder for store and Parquet: made if it does not exist, else used as it is",
    )
    parser.add_argument("--case", choices=SCHEMAS, help="only this one")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave this row out")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        kept = options.kept or folder / "kept"
        store, parquet = kept / "store", kept / "parquet"
        small = {"mapped_file_size_commit_log_bytes": SEGMENT_BYTES}
        if not store.exists():
            fill(store, options.count, options.record_bytes, **small)
        attached = stack.enter_context(cystore.open(store, services="none", **small))
        attached.dispatch()
        spark = session(options.cores, folder, MEMORY)
        if not parquet.exists():
            whole = spark.read.format("cystore").load(str(store))
            whole.write.option("compression", "uncompressed").parquet(str(parquet))
        print(f"{options.count:,} messages, local[{options.cores}], best of {options.rounds}")
        for source, path in (("cystore", store), ("parquet", parquet)):
            show(f"load and plan, {source}", best(options.rounds, planning(spark, source, path)))
        for case, columns in SCHEMAS.items():
            if options.case not in (None, case):
                continue
            frames = entrants(spark, store, parquet, columns, options.count, options.cores)
            frames = {name: frame for name, frame in frames.items() if name not in options.without}
            run = two_columns if case == "two columns" else all_columns
            show_case(case, measured(frames, run, options.rounds))
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
