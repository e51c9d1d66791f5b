"""`python -m benchmarks.spark_scan`: reading a store in Spark beside Spark's own reader of uncompressed Parquet, the same rows.

One local session, warm cache, best wall time of some rounds; each round runs every row once, so that what else the machine does
meets all of them. Needs a JDK 17 or newer.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.columns import fill

GOALS = {"two columns": 0.8, "all columns": 0.45}


def session(cores: int, folder: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def two_columns(frame: Any) -> None:
    frame.selectExpr("max(offset)", "max(timestamp)").collect()


def all_columns(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_scan", description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000, help="messages (%(default)s)")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        store, parquet = str(folder / "store"), str(folder / "parquet")
        fill(folder / "store", options.count, 300)
        spark = session(options.cores, folder)
        frame = spark.read.format("cystore").load(store)
        frame.write.option("compression", "uncompressed").parquet(parquet)
        narrow = "offset LONG, timestamp TIMESTAMP"
        cases: dict[str, tuple[Callable[[Any], None], Any, Any]] = {
            "two columns": (
                two_columns,
                spark.read.format("cystore").schema(narrow).load(store),
                spark.read.parquet(parquet),
            ),
            "all columns": (all_columns, frame, spark.read.parquet(parquet)),
        }
        best: dict[tuple[str, str], float] = {}
        for _ in range(options.rounds):
            for case, (run, ours, theirs) in cases.items():
                for who, read in (("cystore", ours), ("parquet", theirs)):
                    begin = time.perf_counter()
                    run(read)
                    took = time.perf_counter() - begin
                    best[case, who] = min(took, best.get((case, who), took))
        spark.stop()
        print(f"{options.count:,} messages, local[{options.cores}], best of {options.rounds}")
        for case, goal in GOALS.items():
            ours, theirs = best[case, "cystore"], best[case, "parquet"]
            reached = "reached" if theirs / ours >= goal else "MISSED"
            print(
                f"{case:<14} cystore {ours:6.2f} s  parquet {theirs:6.2f} s  {theirs / ours:5.2f} x (goal {goal}: {reached})"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
