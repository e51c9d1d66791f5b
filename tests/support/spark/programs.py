"""Programs of Spark tests, each a process: `python -m tests.support.spark.programs NAME ARGUMENT...`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cystore import StoreConfig
from tests.spark.conftest import fill, start_session
from tests.support.small_stores import SETTINGS, open_small

CLUSTER = "local-cluster[2,1,1024]"  # two executors in processes of their own
DAY_MS = 86_400_000
# Of small stores, as options of the sink.
SMALL = {f"cystore.{name}": str(value) for name, value in SETTINGS.items() if name != "services"}


def stream(folder: str, store: str) -> None:
    """A driver that streams a store into Parquet under `folder` until it is killed, and says each batch it has done."""
    spark = start_session("local[2]", Path(folder))
    _run(spark, to_parquet(spark, folder, store), "no")


def to_parquet(spark: Any, folder: str, store: str) -> Any:
    """The stream of a store into Parquet under `folder`, not yet started."""
    root = Path(folder)
    frame = spark.readStream.format("cystore").option("startingOffsets", "earliest")
    frame = frame.option("maxOffsetsPerTrigger", "40").load(store)
    frame = frame.selectExpr("cast(properties['number'] as int) as number", "topic", "offset")
    query = frame.writeStream.format("parquet").option("path", str(root / "out"))
    return query.option("checkpointLocation", str(root / "checkpoint"))


def copy(folder: str, store: str, into: str, ends_by_itself: str) -> None:
    """The same into another store, with its checkpoint under `folder`."""
    root = Path(folder)
    spark = start_session("local[2]", root)
    frame = spark.readStream.format("cystore").option("startingOffsets", "earliest")
    frame = frame.option("maxOffsetsPerTrigger", "150").load(store)
    query = frame.writeStream.format("cystore").option("path", into).options(**SMALL)
    _run(spark, query.option("checkpointLocation", str(root / "checkpoint")), ends_by_itself)


def _run(spark: Any, query: Any, ends_by_itself: str) -> None:
    query = (
        query.trigger(availableNow=True)
        if ends_by_itself == "yes"
        else query.trigger(processingTime="0 seconds")
    )
    running = query.start()
    last = -1
    while not running.awaitTermination(0.02):
        progress = running.lastProgress
        if progress is not None and progress["batchId"] != last:
            last = progress["batchId"]
            print(json.dumps({"batch": last}), flush=True)
    spark.stop()


def write(store: str, first: str, step: str) -> None:
    """Writes messages with ascending numbers until it is ended; says each number below which all are durable."""
    with open_small(store) as opened:
        number = int(first)
        while True:
            fill(opened, int(step), number)
            opened.flush()
            number += int(step)
            print(number, flush=True)
            if not sys.stdin.readline():  # one line allows one more step
                return


def cluster(folder: str, store: str) -> None:
    """Reads a store with two executors in processes of their own, and says what it found."""
    spark = start_session(CLUSTER, Path(folder), **{"spark.executor.memory": "512m"})
    frame = spark.read.format("cystore").option("minPartitions", "4").load(store)
    rows = frame.selectExpr("int(properties['number']) as number", "spark_partition_id() as part").collect()
    found = {"numbers": sorted(row.number for row in rows), "partitions": len({row.part for row in rows})}
    print(json.dumps(found), flush=True)
    spark.stop()


def by_url(folder: str, url: str, storage: str) -> None:
    """The same of a store's sealed segments by URL; says also what its plan shows, and what an error does."""
    spark = start_session(CLUSTER, Path(folder), **{"spark.executor.memory": "512m"})
    options = {f"fs.{name}": value for name, value in json.loads(storage).items()}
    frame = spark.read.format("cystore").options(minPartitions="4", **options).load(url)
    rows = frame.selectExpr("int(properties['number']) as number", "store").collect()
    plan = frame._jdf.queryExecution().toString()
    found = {
        "numbers": sorted(row.number for row in rows),
        "hosts": sorted({row.store for row in rows}),
        "plan": plan,
    }
    print(json.dumps(found), flush=True)
    spark.stop()


def hush(folder: str, store: str, secrets: str) -> None:
    """Reads a store with options of a file system that are secret, in queries, views and writes, and prints what their
    plans and schemas show."""
    logs = Path(folder, "logs")
    logs.mkdir()
    log = {"enabled": "true", "compress": "false", "dir": f"file://{logs}"}
    spark = start_session(
        "local[1]", Path(folder), **{f"spark.eventLog.{name}": value for name, value in log.items()}
    )
    options = {f"fs.{name}": value for name, value in json.loads(secrets).items()}
    frame = spark.read.format("cystore").options(**options).load(store)
    frame.write.parquet(str(Path(folder, "written")))
    frame.createOrReplaceTempView("seen")
    counted = spark.sql("SELECT topic, count(*) AS messages FROM seen GROUP BY topic")
    joined = frame.join(counted, "topic").select("key", "messages")
    joined.collect()
    for one in (frame, counted, joined):
        print(one.schema.json(), repr(one), one._jdf.queryExecution().toString(), flush=True)
    spark.stop()


def swap(store: str, steps: str) -> None:
    """Renames what a rebuild has staged into place, and is killed after so many steps."""
    from cystore.spark.jobs import rebuild as job
    from cystore.spark.jobs.rebuild import files

    left = int(steps)

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return step(*arguments)

        return run

    files.move, job.mark_undispatched = counted(files.move), counted(job.mark_undispatched)
    job.Checkpoint, job.remove_stage = counted(job.Checkpoint), counted(job.remove_stage)
    root = Path(store)
    config = StoreConfig.from_mapping({**SETTINGS, "exclusive": True, "services": ()})
    with job._alone(root):
        job.swap(root, job._recovered(root, config, None))


def aggregate(steps: str, out: str, *arguments: str) -> None:
    """The job's command, killed after so many steps: before and after a file in `out` gets its name."""
    from cystore.spark.__main__ import main

    _kill_after(int(steps), Path(out))
    raise SystemExit(main(["aggregate", *arguments, "--out", out]))


def daily(steps: str, out: str, store: str, days: str) -> None:
    """The same without Spark: the numbers are those of a log with so many days."""
    from cystore.spark.jobs import aggregate as job

    _kill_after(int(steps), Path(out))
    made_up(job, int(days))
    print(json.dumps(job.aggregate(None, store, out)), flush=True)


def made_up(job: Any, days: int) -> None:
    """Lets the job find one task an hour, for so many days, instead of asking Spark."""
    import pyarrow as pa

    class Runs:
        def select(self, *names: str) -> Runs:
            return self

        persist = unpersist = select

        def toArrow(self) -> Any:
            table = {"name": ["shop.pay"] * days, "count": [24] * days, "retried": [0] * days}
            return pa.table({"date": [job.day_of(day * DAY_MS) for day in range(days)], **table})

    job._events = job.task_runs = lambda *arguments: Runs()
    job.daily = lambda runs: runs
    job._times = lambda runs, begin_ms=0: (begin_ms, days * DAY_MS - 1)


def _kill_after(left: int, out: Path) -> None:
    from cystore.system import files

    rename = files._rename

    def step() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def counted(source: Path, target: Path) -> None:
        if out not in target.parents:
            return rename(source, target)
        step()
        rename(source, target)
        return step()

    files._rename = counted


if __name__ == "__main__":
    jobs = {
        "stream": stream,
        "copy": copy,
        "write": write,
        "cluster": cluster,
        "by_url": by_url,
        "hush": hush,
        "swap": swap,
        "aggregate": aggregate,
        "daily": daily,
    }
    jobs[sys.argv[1]](*sys.argv[2:])
