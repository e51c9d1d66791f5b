"""`python -m benchmarks.spark_jobs`: the Spark jobs scrub and rebuild beside what one process does by itself, on the same store.

* scrub beside one process that walks the log and checks every checksum: the goal is its time and 1.5 s more, up to 4 GiB. Of a store in
  use, and of one at rest, which the driver first recovers into memory: that reads the last segments once more, in one process.
* rebuild beside the store's own dispatcher (`cystore rebuild`): the goal is 6 times its time on 2 cores. With the times on 1 and 2 cores
  it prints the number of cores from which on Spark is the faster way, as far as what can be shared out among them says.

Warm cache, best wall time of some rounds, CPU seconds of this process and its children beside it. Needs a JDK 17 or newer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cystore
from benchmarks.columns import fill, scan
from benchmarks.spark_session import Took, best, session
from cystore import arrow
from cystore.cli.program import main as command

SCRUB_MORE_S, REBUILD_TIMES = 1.5, 6.0
CORES = (1, 2)


def show(name: str, took: Took, rest: str = "") -> None:
    print(f"{name:<34} {took[0]:7.2f} s wall {took[1]:7.2f} s CPU  {rest}".rstrip(), flush=True)


def checksums(store: Path) -> Callable[[], int]:
    with cystore.open(store, services="none", read_only=True) as opened:
        ranges = arrow.plan_ranges(opened.snapshot(), arrow.RowFilter())
    return lambda: scan(ranges)


def dispatched(store: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        if command(["rebuild", str(store), "--json"]):
            raise SystemExit("the store is damaged")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_jobs", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="messages (%(default)s)")
    parser.add_argument("--record-bytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, store = Path(name), Path(name) / "store"
        fill(store, options.count, options.record_bytes)
        size = sum(path.stat().st_blocks * 512 for path in (store / "commitlog").iterdir())
        print(f"{options.count:,} messages, {size / 2**30:.2f} GiB of log, best of {options.rounds}")
        alone = best(options.rounds, checksums(store))
        show("checksums, one process", alone)
        dispatcher = best(options.rounds, lambda: dispatched(store))
        show("rebuild, the store's dispatcher", dispatcher)
        rebuilt = {}
        for cores in CORES:
            spark = session(cores, folder)
            from cystore.spark.jobs.rebuild import rebuild
            from cystore.spark.jobs.scrub import scrub

            def scrub_once(spark: Any = spark) -> None:
                if scrub(spark, store).summary["damaged_ranges"]:
                    raise SystemExit("the store is damaged")

            for state, kept in (("in use", cystore.open(store, services="none")), ("at rest", None)):
                with kept or contextlib.nullcontext():
                    took = best(options.rounds, scrub_once)
                more = took[0] - alone[0]
                reached = "reached" if more <= SCRUB_MORE_S else "MISSED"
                show(
                    f"scrub, {state}, local[{cores}]",
                    took,
                    f"{more:+.2f} s (goal +{SCRUB_MORE_S} s: {reached})",
                )
            rebuilt[cores] = best(options.rounds, lambda spark=spark: rebuild(spark, store))
            times = rebuilt[cores][0] / dispatcher[0]
            goal = "reached" if times <= REBUILD_TIMES else "MISSED"
            told = f"(goal {REBUILD_TIMES} x: {goal})" if cores == 2 else ""
            show(f"rebuild, local[{cores}]", rebuilt[cores], f"{times:.2f} x {told}")
            spark.stop()
        print(even(rebuilt[1][0], rebuilt[2][0], dispatcher[0]))
    return 0


def even(one_s: float, two_s: float, dispatcher_s: float) -> str:
    """From how many cores on Spark is faster, if what two cores saved is what can be shared out."""
    shared = max(2 * (one_s - two_s), 0.0)
    fixed = one_s - shared
    if one_s <= dispatcher_s:
        return "rebuild: even on 1 core"
    if fixed >= dispatcher_s or shared == 0:
        return f"rebuild: never even, {fixed:.2f} s of it are not shared out"
    return f"rebuild: even from {shared / (dispatcher_s - fixed):.1f} cores on ({fixed:.2f} s of it are not shared out)"


if __name__ == "__main__":
    raise SystemExit(main())
