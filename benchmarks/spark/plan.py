"""`python -m benchmarks.spark.plan`: the time of Spark's driver to plan a read of very many segments, and the memory of
the plan.

Planning reads no bodies, so the length of segments does not matter; these are short. The benchmark asks for as many
partitions as segments, which segments of 1 GiB would have. In the first row the store is at rest, in the others in use.
A store at rest is recovered into memory for the plan, which reads up to its last GiB (here all of it) or three
segments. Needs a JDK 17 or newer, or --no-spark.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import cystore
from cystore.spark.data_source import CystoreDataSource

GOAL_S = 10.0
RECORDS = 4  # in each segment


def make_store(path: Path, segments: int, file_bytes: int) -> tuple[int, int]:
    """A closed store whose consume queues and index are dispatched; the store timestamps of its middle."""
    body = bytes(file_bytes // RECORDS - 200)
    with cystore.open(path, mapped_file_size_commit_log_bytes=file_bytes, services="none") as store:
        messages = [cystore.Message(topic="orders", body=body, keys=(f"key-{n}",)) for n in range(RECORDS)]
        times = [store.put_many(messages)[0].store_timestamp_ms for _ in range(segments)]
        store.dispatch()
        made = -(-store.stats()["wrote"] // file_bytes)
        assert made == segments, made
    return times[segments // 2], times[segments // 2 + segments // 100 + 1]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def planned(options: dict[str, str]) -> tuple[float, int, int, int]:
    """Seconds, partitions, bytes of the pickled plan, growth of this process."""
    gc.collect()
    before = resident_bytes()
    begin = time.perf_counter()
    source = CystoreDataSource(options)
    partitions = source.reader(source.schema()).partitions()
    took = time.perf_counter() - begin
    return took, len(partitions), sum(len(pickle.dumps(one)) for one in partitions), resident_bytes() - before


def show(case: str, options: dict[str, str]) -> float:
    """Plans and prints; the seconds."""
    took, count, size, growth = planned(options)
    shown = f"{size / 1e6:6.2f} MB pickled  {growth / 1e6:6.1f} MB resident"
    print(f"{case:<24} {took:6.2f} s  {count:7,} partitions  {shown}")
    return took


def in_spark(options: dict[str, str], cores: int, folder: Path) -> tuple[float, int, int]:
    """Seconds, partitions, growth of the JVM's heap: the plan as Spark holds it."""
    from benchmarks.spark.scan import session

    spark = session(cores, folder)
    runtime = spark._jvm.java.lang.Runtime.getRuntime()

    def heap() -> int:
        spark._jvm.java.lang.System.gc()
        return int(runtime.totalMemory() - runtime.freeMemory())

    def plan() -> Any:
        return spark.read.format("cystore").options(**options).load()

    plan().schema  # noqa: B018 - starts Spark's Python
    before = heap()
    begin = time.perf_counter()
    frame = plan()
    count = frame.rdd.getNumPartitions()
    took = time.perf_counter() - begin
    growth = heap() - before
    spark.stop()
    return took, count, growth


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.plan", description=__doc__)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--segment-kib", type=int, default=32)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--no-spark", action="store_true", help="only the planning, without a JVM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        begin = time.perf_counter()
        middle, behind = make_store(folder / "store", options.segments, options.segment_kib << 10)
        print(f"{options.segments:,} segments, made in {time.perf_counter() - begin:.0f} s")
        path, each = str(folder / "store"), {"minPartitions": str(options.segments * 9 // 10)}
        times = {"startingTimestamp": str(middle), "endingTimestamp": str(behind)}
        cases: dict[str, dict[str, str]] = {
            "everything": each,
            "packed": {},
            "one topic": {"topic": "orders", **each},
            "a time range": {**times, **each},
            "a key": {"key": "key-1", "startingTimestamp": str(behind), **each},
            "offsets by queue": {"topic": "orders", "startingOffsets": '{"orders":{"0":17}}', **each},
            "3 partitions a segment": {"minPartitions": str(3 * options.segments)},
            "by URL": {"sealedSegments": "true", **each},
            "by URL, a time range": {"sealedSegments": "true", **times, **each},
        }
        worst = show("everything, at rest", {"path": path, **each})
        with cystore.open(path, services="none"):
            for case, more in cases.items():
                worst = max(worst, show(case, {"path": path, **more}))
            if not options.no_spark:
                took, count, growth = in_spark({"path": path, **each}, options.cores, folder)
                worst = max(worst, took)
                shown = f"{growth / 1e6:6.1f} MB of the JVM's heap"
                print(f"{'everything, in Spark':<24} {took:6.2f} s  {count:7,} partitions  {shown}")
        reached = "reached" if worst <= GOAL_S else "MISSED"
        print(f"slowest {worst:.2f} s (goal at 10,000 segments: {GOAL_S:g} s: {reached})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
