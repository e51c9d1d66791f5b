"""The job report: what the tasks of a fleet did, as Parquet and as one HTML page.

example:
  python -m cystore.spark report /var/lib/app/store --out /var/www/report
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.storagelevel import StorageLevel

from cystore.errors import StoreConfigError
from cystore.operate.command import add_settings, path_argument
from cystore.reports import check_installed
from cystore.reports.report import TOP, Form, written
from cystore.reports.report_folder import check_out
from cystore.spark import report
from cystore.spark.jobs import report_here
from cystore.spark.jobs.running import add_master, own_session, source_options
from cystore.spark.options import STRATEGY
from cystore.spark.task_runs import read_runs

HELP = "task analytics: Parquet tables and an HTML page"
# For a small log Spark compiles more code than it runs: with only the quick compiler, the command takes two thirds of
# the processor time. The driver's options from --conf or Spark's configuration follow it.
_SHORT = (("spark.driver.defaultJavaOptions", "-XX:TieredStopAtLevel=1"),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments on the command line."""
    parser.add_argument("stores", nargs="+", metavar="STORE", help="directories of stores, or globs")
    parser.add_argument(
        "--out", required=True, type=path_argument, help="the folder to make; it must not exist"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an older report")
    parser.add_argument(
        "--begin", type=_time, help="events from this time on, ISO 8601 (UTC unless it has an offset)"
    )
    parser.add_argument("--end", type=_time, help="events before this time")
    parser.add_argument(
        "--top", type=int, default=TOP, help=f"number of failures and workflows (default {TOP})"
    )
    parser.add_argument("--include-archive", action="store_true", help="read archived events too")
    add_master(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the job for a command line. Makes all possible checks before Spark starts."""
    _check(options.out, options.stores, options.begin, options.end, options.top, overwrite=options.overwrite)
    settings = source_options(options)
    chosen = _options(options.begin, options.end, options.include_archive)
    small = report_here.is_small(options.stores, {**chosen, **settings})
    # If Spark's master is a process of this host, this process reads the log itself: a session would start later.
    here = small and not options.conf and (options.master is None or _is_local(options.master))
    conf = [*(_SHORT if small and _is_local(options.master) else ()), *options.conf]
    with nullcontext() if here else own_session("report", options.master, conf) as spark:
        return write_report(
            spark,
            options.stores,
            options.out,
            begin=options.begin,
            end=options.end,
            top=options.top,
            overwrite=options.overwrite,
            include_archive=options.include_archive,
            **settings,
        )


def _is_local(master: str | None) -> bool:
    """Whether Spark runs in one process of this host."""
    return master is not None and (master == "local" or master.startswith("local["))


def write_report(
    spark: SparkSession | None,
    stores: str | Sequence[str],
    out: Path | str,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    top: int = TOP,
    overwrite: bool = False,
    include_archive: bool = False,
    **options: str,
) -> dict[str, Any]:
    """Writes `hourly`, `names`, `workers`, `tracebacks` and `workflows` as Parquet and `report.html` into the folder
    `out`, completely or not at all; returns a summary. Times are UTC. `options` are further options of the source.

    Without a session this process does all of it. That is faster for a log of up to some GiB, and holds all attempts
    in memory. In a session Spark reads the log. It also counts the attempts of a log of more than 2 GiB; for a
    smaller one, this process does. Raises StoreConfigError for a folder that is there, unless `overwrite` and it is a
    report."""
    folder = _check(out, stores, begin, end, top, overwrite=overwrite)
    options = {**_options(begin, end, include_archive), **options}
    listed = [stores] if isinstance(stores, str) else list(stores)
    return written(folder, listed, _tables(spark, stores, options, top), Form())


def _check(
    out: Path | str,
    stores: str | Sequence[str],
    begin: datetime | None,
    end: datetime | None,
    top: int,
    *,
    overwrite: bool,
) -> Path:
    """The folder to make. Raises StoreConfigError for arguments from which no report can be made, and for packages that
    are missing."""
    check_installed(plots=True)
    if not isinstance(top, int) or top < 1:
        raise StoreConfigError(f"top must be a whole number from 1, not {top!r}")
    if begin is not None and end is not None and begin >= end:
        raise StoreConfigError(f"begin ({begin.isoformat()}) must be before end ({end.isoformat()})")
    return check_out(out, stores, overwrite=overwrite)


def _options(begin: datetime | None, end: datetime | None, include_archive: bool) -> dict[str, str]:
    """Options of the source for events in [begin, end). The store's times are whole milliseconds, so bounds are
    rounded up."""
    chosen = {"startingTimestamp": begin, "endingTimestamp": end}
    options = {
        name: str(math.ceil(time.timestamp() * 1000)) for name, time in chosen.items() if time is not None
    }
    options[STRATEGY] = "latest"  # a queue without events since that time is no error
    return {**options, **({"includeArchive": "true"} if include_archive else {})}


def _tables(
    spark: SparkSession | None, stores: str | Sequence[str], options: dict[str, str], top: int
) -> dict[str, pa.Table]:
    if spark is None:
        return report_here.tables_here(stores, options, top)
    if report_here.is_small(stores, options):
        return report_here.tables_collected(spark, stores, options, top)
    return _by_spark(spark, stores, options, top)


def _by_spark(
    spark: SparkSession, stores: str | Sequence[str], options: dict[str, str], top: int
) -> dict[str, pa.Table]:
    runs = read_runs(spark.read, stores, **options)
    runs = runs.persist(StorageLevel.MEMORY_AND_DISK)  # the log is read once
    frames = {
        "hourly": report.hourly(runs).orderBy("hour", "name"),
        "names": report.names(runs),
        "workers": report.workers(runs),
        "tracebacks": report.tracebacks(runs, top),
        "workflows": report.workflows(runs, top),
        "unfinished": report.unfinished(runs, top),
    }
    try:
        return {name: _in_utc(frame.toArrow()) for name, frame in frames.items()}
    finally:
        runs.unpersist()


def _in_utc(table: pa.Table) -> pa.Table:
    """Times in UTC: Spark gives them in the zone of its session."""
    for at, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            times = table[column.name].cast(pa.timestamp("us", tz="UTC"))
            table = table.set_column(at, column.name, times)
    return table


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-01-31T12:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
