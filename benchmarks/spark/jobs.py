"""`python -m benchmarks.spark.jobs`: the Spark jobs scrub and rebuild beside what one process does by itself, on the
same store.

* scrub beside one process that walks the log and checks every checksum: the goal is that time and 1.5 s more, up to 4
  GiB. The store is in use, at rest, or was left without a close. In the last case one process walks the last segments
  once more to find the end.
* rebuild beside the store's own dispatcher (`cystore rebuild`): the goal is 6 times its time on 2 cores. From the times
  on 1 and 2 cores it prints the number of cores from which Spark is faster, by the part that runs in parallel.

Warm cache, best wall time of some rounds, CPU seconds of this process and its children beside it. Needs a JDK 17 or
newer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cystore
from benchmarks.spark.session import ROOT, Took, best, session
from benchmarks.store.columns import fill, scan
from cystore.cli.program import main as command
from cystore.columns import arrow

SCRUB_MORE_S, REBUILD_TIMES = 1.5, 6.0
CORES = (1, 2)
# Appends to the store named, and is killed.
CRASH = """
import os, signal, sys, cystore
store = cystore.open(sys.argv[1], services="none")
store.put_many([cystore.Message(topic="orders-0", body=b"x" * 150) for _ in range(1000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


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


@contextlib.contextmanager
def left(store: Path, state: str) -> Iterator[None]:
    """Keeps the store in a state for a with block; then it is at rest again."""
    if state == "in use":
        with cystore.open(store, services="none"):
            yield
        return
    if state == "crashed":
        killed = subprocess.run([sys.executable, "-c", CRASH, str(store)], cwd=ROOT)
        if killed.returncode != -signal.SIGKILL:
            raise SystemExit(f"the process that was to be killed ended with {killed.returncode}")
    yield
    if state == "crashed":
        cystore.open(store, services="none").close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.jobs", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="messages (%(default)s)")
    parser.add_argument("--record-bytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument(
        "--store",
        type=Path,
        help="a store that is kept after the run: made if it does not exist, else used as it is",
    )
    parser.add_argument("--job", choices=("scrub", "rebuild"), help="only this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, store = Path(name), options.store or Path(name) / "store"
        if not store.exists():
            fill(store, options.count, options.record_bytes)
        size = sum(path.stat().st_blocks * 512 for path in (store / "commitlog").iterdir())
        print(f"{options.count:,} messages, {size / 2**30:.2f} GiB of log, best of {options.rounds}")
        if options.job != "rebuild":
            scrubs(store, folder, options.rounds)
        if options.job != "scrub":
            rebuilds(store, folder, options.rounds)
    return 0


def scrubs(store: Path, folder: Path, rounds: int) -> None:
    alone = best(rounds, checksums(store))
    show("checksums, one process", alone)
    for cores in CORES:
        spark = session(cores, folder)
        from cystore.spark.jobs.scrub import scrub

        def scrub_once(spark: Any = spark) -> None:
            if scrub(spark, store).summary["damaged_ranges"]:
                raise SystemExit("the store is damaged")

        for state in ("in use", "at rest", "crashed"):
            with left(store, state):
                took = best(rounds, scrub_once)
            more = took[0] - alone[0]
            reached = "reached" if more <= SCRUB_MORE_S else "MISSED"
            show(
                f"scrub, {state}, local[{cores}]", took, f"{more:+.2f} s (goal +{SCRUB_MORE_S} s: {reached})"
            )
        spark.stop()


def rebuilds(store: Path, folder: Path, rounds: int) -> None:
    dispatcher = best(rounds, lambda: dispatched(store))
    show("rebuild, the store's dispatcher", dispatcher)
    rebuilt = {}
    for cores in CORES:
        spark = session(cores, folder)
        from cystore.spark.jobs.rebuild import rebuild

        rebuilt[cores] = best(rounds, lambda spark=spark: rebuild(spark, store))
        times = rebuilt[cores][0] / dispatcher[0]
        goal = "reached" if times <= REBUILD_TIMES else "MISSED"
        told = f"(goal {REBUILD_TIMES} x: {goal})" if cores == 2 else ""
        show(f"rebuild, local[{cores}]", rebuilt[cores], f"{times:.2f} x {told}")
        spark.stop()
    print(even(rebuilt[1][0], rebuilt[2][0], dispatcher[0]))


def even(one_s: float, two_s: float, dispatcher_s: float) -> str:
    """The number of cores from which Spark is faster. It assumes that all the work that can be shared out is the work
    that two cores shared."""
    shared = max(2 * (one_s - two_s), 0.0)
    fixed = one_s - shared
    if one_s <= dispatcher_s:
        return "rebuild: even on 1 core"
    if fixed >= dispatcher_s or shared == 0:
        return f"rebuild: never even, {fixed:.2f} s of it do not run in parallel"
    return (
        f"rebuild: even from {shared / (dispatcher_s - fixed):.1f} cores on "
        f"({fixed:.2f} s of it do not run in parallel)"
    )


if __name__ == "__main__":
    raise SystemExit(main())
