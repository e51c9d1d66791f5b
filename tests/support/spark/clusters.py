"""Programs with two executors, some of which die: `python -m tests.support.spark.clusters NAME ARGUMENT...`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from tests.spark.conftest import start_session
from tests.support.small_stores import SETTINGS
from tests.support.spark.programs import CLUSTER, SMALL

EXECUTOR, DAEMON = b"CoarseGrainedExecutorBackend", b"pyspark.daemon"


def session(folder: str, **more: str) -> Any:
    return start_session(CLUSTER, Path(folder), **{"spark.executor.memory": "512m", **more})


def say(**found: Any) -> None:
    print(json.dumps(found, default=str), flush=True)


def executor_above(pid: int) -> int:
    """The executor that a Python worker works for: the first of its parents that is one."""
    while pid > 1:
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError("this is no worker of an executor")


def await_file(staging: Path) -> bool:
    """Whether the rows that were passed on have begun to be staged; not for ever, for the first of them may be on
    their way."""
    return any(any(staging.rglob("*.rows")) or threading.Event().wait(0.1) for _ in range(100))


def killing(
    folder: str, part: int, staging: str = ""
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: the first attempt of one task passes its first rows on, until something is staged, and then
    kills its executor."""
    killed = Path(folder) / "killed"

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if context.partitionId() != part or killed.exists():
                continue
            if not staging or (number >= 20 and await_file(Path(staging))):
                executor = executor_above(os.getppid())
                killed.write_text(str(executor))
                os.kill(executor, signal.SIGKILL)
                assert DAEMON in Path(f"/proc/{os.getpgrp()}/cmdline").read_bytes()
                os.killpg(0, signal.SIGKILL)  # its Python workers too, this one among them: nobody tidies up

    return work


def source(spark: Any, store: str) -> Any:
    """In many partitions of some batches each."""
    return spark.read.format("cystore").option("minPartitions", "6").load(store)


def read(folder: str, store: str) -> None:
    """A batch read, one of whose executors is killed in the middle of a task."""
    spark = session(folder)
    frame = source(spark, store).selectExpr("int(properties['number']) as number", "value")
    rows = frame.mapInArrow(killing(folder, 3), frame.schema).select("number").collect()
    say(numbers=sorted(row.number for row in rows), killed=(Path(folder) / "killed").read_text())
    spark.stop()


def write(folder: str, store: str, into: str, named: str) -> None:
    """A write, one of whose executors is killed while it stages. Rows go from one Python worker to the next a few at
    a time."""
    few = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10", "spark.buffer.size": "1024"}
    spark = session(folder, **few)
    frame = source(spark, store).repartition(1)
    frame = frame.mapInArrow(killing(folder, 0, f"{into}.staging"), frame.schema)
    options = {"txnAppId": "copy", "txnVersion": "1"} if named == "yes" else {}
    frame.write.format("cystore").mode("append").options(**SMALL, **options).save(into)
    say(killed=(Path(folder) / "killed").read_text())
    spark.stop()


def stream(folder: str, store: str, into: str) -> None:
    """A stream from store to store in micro-batches, with an executor killed in one of them."""
    spark = session(folder)
    frame = spark.readStream.format("cystore").option("startingOffsets", "earliest")
    frame = frame.option("maxOffsetsPerTrigger", "150").option("minPartitions", "4").load(store)
    frame = frame.mapInArrow(killing(folder, 1), frame.schema)
    query = frame.writeStream.format("cystore").option("path", into).options(**SMALL)
    query = query.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    say(killed=(Path(folder) / "killed").read_text())
    spark.stop()


def jobs(folder: str, damaged: str, undispatched: str, archived: str, events: str) -> None:
    """Every job once, each on a store of its own."""
    from cystore.spark.jobs.archive import archive
    from cystore.spark.jobs.live import follow
    from cystore.spark.jobs.rebuild import rebuild
    from cystore.spark.jobs.report import write_report
    from cystore.spark.jobs.scrub import scrub

    spark, root = session(folder), Path(folder)
    small = {name: value for name, value in SETTINGS.items() if name != "services"}
    say(scrub=scrub(spark, damaged, range_bytes=16 * 1024, **small).summary)
    say(rebuild=rebuild(spark, undispatched, range_bytes=16 * 1024, **small))
    say(archive=archive(spark, archived, str(root / "archive"), settings=SETTINGS, all_sealed=True))
    both = spark.read.format("cystore").option("includeArchive", "true").load(archived)
    say(both=sorted(row.n for row in both.selectExpr("int(properties['number']) as n").collect()))
    say(report=write_report(spark, events, root / "report"))
    say(live=follow(spark, events, root / "live", window="1 hour", once=True))
    spark.stop()


if __name__ == "__main__":
    programs = {"read": read, "write": write, "stream": stream, "jobs": jobs}
    programs[sys.argv[1]](*sys.argv[2:])
