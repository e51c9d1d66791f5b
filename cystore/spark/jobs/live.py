"""Follows a fleet's tasks: a stream into Parquet, which a dashboard can read. A row has the runs, failures, retries
and runtimes of one task name in one window of time. The job writes a window once: when an event arrives that is later
than the window's end by the watermark. You may end the job by Ctrl-C (exit code 130, with the summary) or a kill; the
next start continues there and repeats no window.

example:
  python -m cystore.spark live /var/lib/app/store --out /var/lib/app/windows --window "1 minute"
"""

from __future__ import annotations

import argparse
import re
import signal
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from cystore.errors import StoreConfigError
from cystore.operate.command import OK, add_settings, path_argument
from cystore.operate.exits import INTERRUPTED
from cystore.reports.report_folder import existing_stores, outside_of
from cystore.spark.jobs.running import add_master, few_partitions, own_session, source_options
from cystore.spark.report import live
from cystore.spark.task_events import task_events
from cystore.system import files
from cystore.system.threads import os_threads

HELP = "the numbers of tasks by minute, as a stream into Parquet"
HADOOP_UMASK = "spark.hadoop.fs.permissions.umask-mode"
WINDOW, WATERMARK, EVERY = "1 minute", "10 minutes", "10 seconds"
# A length of time as Spark reads it, as "1 hour 30 minutes"; a window cannot have months.
_PART = r"\d+ *(?:microsecond|millisecond|second|minute|hour|day|week)s?"
LENGTH = re.compile(rf"(?:interval +)?{_PART}(?: +{_PART})*", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments on the command line."""
    parser.add_argument("store", metavar="STORE", help="directory of a store, or a glob")
    parser.add_argument(
        "--out",
        required=True,
        type=path_argument,
        help="folder of the Parquet files; the checkpoint lies in it",
    )
    parser.add_argument("--window", default=WINDOW, help=f"length of a window (default: {WINDOW})")
    parser.add_argument(
        "--watermark", default=WATERMARK, help=f"how late an event may come (default: {WATERMARK})"
    )
    parser.add_argument(
        "--every", default=EVERY, help=f"how often files are written, at most (default: {EVERY})"
    )
    parser.add_argument("--once", action="store_true", help="process the present events, then end")
    add_master(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Follows until it is interrupted. With --once it ends after the present events."""
    folder = outside_of(existing_stores(options.store), options.out)
    _check(options.window, options.watermark, options.every)
    settings = source_options(options)
    files.make_directory(folder)
    with files.access_of(folder) as umask, _session(options, umask) as spark:
        few_partitions(spark)  # each makes a file of state for each batch
        return follow(
            spark,
            options.store,
            options.out,
            window=options.window,
            watermark=options.watermark,
            every=options.every,
            once=options.once,
            **settings,
        )


def _session(options: argparse.Namespace, umask: int) -> AbstractContextManager[SparkSession]:
    """The job's session. Hadoop sets the mode of each file, whatever the umask of its process is."""
    return own_session("live", options.master, [(HADOOP_UMASK, f"{umask:03o}"), *options.conf])


def follow(
    spark: SparkSession,
    store: str,
    out: Path | str,
    *,
    window: str = WINDOW,
    watermark: str = WATERMARK,
    every: str = EVERY,
    once: bool = False,
    **options: str,
) -> dict[str, Any]:
    """Writes windows into the folder `out` until the stream is stopped: one file for each batch, and at most one
    batch in each period `every`. Returns the number of batches since the checkpoint began, and whether Ctrl-C ended it.
    A folder that it makes is for the owner alone, or for the group of the folder above; the session decides about the
    files. `options` are those of the source. Raises StoreConfigError."""
    folder = outside_of(existing_stores(store), out)
    _check(window, watermark, every)
    files.make_directory(folder)
    events = task_events(spark.readStream, store, **{"startingOffsets": "earliest", **options})
    writer = (
        live(events, window, watermark)
        .coalesce(1)
        .writeStream.outputMode("append")
        .format("parquet")
        .option("path", f"file://{folder}")
        .option("checkpointLocation", f"file://{folder}/_checkpoint")
    )
    query = writer.trigger(**({"availableNow": True} if once else {"processingTime": every})).start()
    interrupted = not _ran_to_its_end(query)
    return {"out": str(folder), "batches": _batches(folder), "interrupted": interrupted}


def exit_code(summary: dict[str, Any]) -> int:
    """130 if Ctrl-C ended the stream."""
    return INTERRUPTED if summary["interrupted"] else OK


def _check(window: str, watermark: str, every: str) -> None:
    """Raises StoreConfigError for a length of time that Spark does not accept."""
    for name, length in (("window", window), ("watermark", watermark), ("every", every)):
        if not LENGTH.fullmatch(length.strip()):
            raise StoreConfigError(f"{name} must be a length of time like '10 seconds', not {length!r}")
    if not re.search("[1-9]", window):
        raise StoreConfigError(f"window must be longer than {window!r}")


def _batches(folder: Path) -> int:
    """The number of complete batches since the checkpoint began. The progress of a query that has just started does not
    have it yet."""
    commits = (folder / "_checkpoint" / "commits").glob("[0-9]*")
    return max((int(commit.name) + 1 for commit in commits), default=0)


def _ran_to_its_end(query: StreamingQuery) -> bool:
    """Waits until the query ends; false if Ctrl-C stopped it. Raises the error with which the query failed.

    Another thread asks Spark. PySpark's own handler of Ctrl-C would call Spark on the connection on which this thread
    waits, and that breaks the connection."""
    failures: list[Exception] = []

    def ask() -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    in_main = threading.current_thread() is threading.main_thread()
    asking = os_threads.begin(ask, "cystore-await-query")
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if in_main else None
    try:
        asking.join()
    except KeyboardInterrupt:
        query.stop()
        asking.join()
        return False
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)
    if failures:
        raise failures[0]
    return True
