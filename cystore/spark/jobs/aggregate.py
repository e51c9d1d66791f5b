"""Keeps daily numbers of tasks: runs, failures, retries, runtimes and waits by task name and day (UTC).

A day is open until the log has an event that is `--watermark-h` hours later than the day's end. A run computes the
open days again and leaves the final days alone. It reads the events of the open days, and of `--lookback-days` before
them: there the attempts may have begun that ended on an open day. If an attempt ends on a final day, the summary
counts it as `late`, and no file changes.

You may kill a run at any time; the next run does the same days again. If the cleaner removed events of an open day,
that day's file stays as it is and becomes final, and the summary counts the day as `kept`. Read the archive too
(--include-archive), or run the job more often.

exit codes: 0 done; 1 done, but days were kept that may lack attempts; 2 an error

example:
  python -m cystore.spark aggregate /var/lib/app/store --out /var/lib/app/daily
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from cystore.columns.archiver import alone
from cystore.columns.object_store import is_url, local_path
from cystore.errors import StoreConfigError
from cystore.operate.command import FOUND_WRONG, OK, add_settings, path_argument
from cystore.operate.progress import Report
from cystore.reports.report_folder import existing_stores, outside_of
from cystore.spark.jobs import daily_folder as folder
from cystore.spark.jobs.daily_folder import DAY, State, begin_of, day_of
from cystore.spark.jobs.running import add_master, few_partitions, own_session, reported, source_options
from cystore.spark.options import STRATEGY
from cystore.spark.report import daily
from cystore.spark.task_events import task_events
from cystore.spark.task_runs import task_runs
from cystore.system import files

HELP = "daily numbers of tasks; each run computes only the newest days again"
WATERMARK_H, LOOKBACK_DAYS = 24.0, 1
DAYS_MAX = 36_500  # of the watermark and of the lookback
TIMES = ("sent", "received", "started", "ended")
READ = ("name", "outcome", "failed", "runtime", "wait", *TIMES)  # of task_runs; fingerprints would cost much


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments on the command line."""
    parser.add_argument("stores", nargs="+", metavar="STORE", help="directories of stores, or globs")
    parser.add_argument(
        "--out", required=True, type=path_argument, help="the folder of the numbers; the first run makes it"
    )
    parser.add_argument(
        "--watermark-h",
        type=float,
        default=WATERMARK_H,
        metavar="HOURS",
        help="how long a day stays open after its end (%(default)s)",
    )
    parser.add_argument(
        "--lookback-days",
        type=int,
        default=LOOKBACK_DAYS,
        metavar="DAYS",
        help="how many days before its end an attempt may have begun (%(default)s)",
    )
    parser.add_argument("--include-archive", action="store_true", help="read archived events too")
    add_master(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the job for a command line. Makes all possible checks before Spark starts."""
    _check(options.stores, options.out, options.watermark_h, options.lookback_days)
    settings = source_options(options)
    with own_session("aggregate", options.master, options.conf) as spark:
        few_partitions(spark)
        return aggregate(
            spark,
            options.stores,
            options.out,
            watermark_h=options.watermark_h,
            lookback_days=options.lookback_days,
            include_archive=options.include_archive,
            progress=getattr(options, "report", None),
            **settings,
        )


def exit_code(summary: dict[str, Any]) -> int:
    """1 if days were kept that may lack attempts."""
    return FOUND_WRONG if summary["kept"] else OK


def aggregate(
    spark: SparkSession,
    stores: str | Sequence[str],
    out: Path | str,
    *,
    watermark_h: float = WATERMARK_H,
    lookback_days: int = LOOKBACK_DAYS,
    include_archive: bool = False,
    progress: Report | None = None,
    **options: str,
) -> dict[str, Any]:
    """Updates the daily numbers in the folder `out`: daily/date=YYYY-MM-DD/tasks.parquet has the columns of
    `cystore.spark.report.daily` except the date. `options` are those of the source. Returns a summary.

    Raises StoreConfigError for a folder with other files or of other stores, StoreLockedError while another run works
    in it.
    """
    home, state = _check(stores, out, watermark_h, lookback_days)
    given = {STRATEGY: "latest", **({"includeArchive": "true"} if include_archive else {}), **options}
    files.make_directory(home)
    with alone(home, "folder of daily numbers"), reported(spark, "aggregate", progress):
        state = folder.read_state(home, state.stores)
        files.remove_tree(home / files.TMP_DIRECTORY)  # drafts of a killed run
        begin = _begin(state, lookback_days)
        runs = task_runs(_events(spark, stores, begin, given)).select(*READ)
        runs = runs.persist(StorageLevel.MEMORY_AND_DISK)  # the log is read once
        try:
            oldest, newest = _times(runs)
            if oldest is None or newest is None:
                return _summary(home, state, 0, 0, 0)
            days = _by_day(daily(runs).toArrow())
            kept = _days_to_keep(home, state, oldest)
            late = sum(
                folder.late_attempts(home, day, rows) for day, rows in days.items() if state.is_final(day)
            )
            written = _write(home, state, days, kept)
            over = day_of(newest - int(watermark_h * 3_600_000))
            open_from = max([over, *(day + DAY for day in kept), *filter(None, [state.open_from])])
            first, _ = _times(runs, begin_of(open_from - lookback_days * DAY))
        finally:
            runs.unpersist()
        state = replace(state, open_from=open_from, oldest_ms=newest if first is None else first)
        folder.write_state(home, state)
        return _summary(home, state, written, len(kept), late)


def _summary(home: Path, state: State, written: int, kept: int, late: int) -> dict[str, Any]:
    open_from = None if state.open_from is None else str(state.open_from)
    return {"days": written, "kept": kept, "late": late, "open_from": open_from, "out": str(home)}


def _check(
    stores: str | Sequence[str], out: Path | str, watermark_h: float, lookback_days: int
) -> tuple[Path, State]:
    """The folder and its state. Raises StoreConfigError, StoreFormatError, CorruptRecordError."""
    if not (isinstance(watermark_h, int | float) and 0 <= watermark_h <= DAYS_MAX * 24) or math.isnan(
        watermark_h
    ):
        raise StoreConfigError(f"watermark_h must be from 0 to {DAYS_MAX * 24} hours, not {watermark_h!r}")
    if not isinstance(lookback_days, int) or not 0 <= lookback_days <= DAYS_MAX:
        raise StoreConfigError(
            f"lookback_days must be a whole number from 0 to {DAYS_MAX}, not {lookback_days!r}"
        )
    here = existing_stores(stores)
    home = outside_of(here, out)
    patterns = [stores] if isinstance(stores, str) else stores
    urls = [pattern for pattern in patterns if is_url(local_path(pattern))]
    return home, folder.read_state(home, tuple(sorted({*map(str, here), *urls})))


# ------------------------------------------------------------------------------------------------ what a run reads


def _begin(state: State, lookback_days: int) -> int:
    """The time from which events are read. It covers the event that the last run noted, even if its lookback was
    longer."""
    if state.open_from is None or state.oldest_ms is None:
        return 0
    return min(begin_of(state.open_from - lookback_days * DAY), begin_of(day_of(state.oldest_ms)))


def _events(
    spark: SparkSession, stores: str | Sequence[str], begin_ms: int, options: dict[str, str]
) -> DataFrame:
    """Events from a time on. The option chooses a place in each queue; the filter checks each row."""
    chosen = {"startingTimestamp": str(begin_ms)} if begin_ms else {}
    found = task_events(spark.read, stores, **{**chosen, **options})
    return found.where(F.unix_millis("time") >= begin_ms)


def _times(runs: DataFrame, begin_ms: int = 0) -> tuple[int | None, int | None]:
    """The first time from `begin_ms` on and the last time of all, in ms."""
    times = [F.unix_millis(name) for name in TIMES]
    least = F.min(F.array_min(F.filter(F.array(*times), lambda ms: ms >= begin_ms)))
    row = runs.agg(least, F.max(F.greatest(*times))).first()
    return (None, None) if row is None else (row[0], row[1])


def _by_day(found: pa.Table) -> dict[date, pa.Table]:
    days = sorted(day for day in pc.unique(found["date"]).to_pylist() if day is not None)
    return {
        day: found.filter(pc.equal(found["date"], day)).drop_columns(["date"]).sort_by("name") for day in days
    }


# ---------------------------------------------------------------------------------------------- what a run changes


def _days_to_keep(home: Path, state: State, oldest_ms: int) -> set[date]:
    """Open days whose events the cleaner has removed since the last run, entirely or in part: their files know more
    than the log."""
    if state.oldest_ms is None or oldest_ms <= state.oldest_ms:
        return set()
    last = day_of(oldest_ms)
    return {day for day in folder.days_in(home) if day <= last and not state.is_final(day)}


def _write(home: Path, state: State, days: dict[date, pa.Table], kept: set[date]) -> int:
    """Writes the open days. Returns their number."""
    written = 0
    for day, rows in days.items():
        if not state.is_final(day) and day not in kept:
            folder.write_day(home, day, rows)
            written += 1
    for day in sorted(folder.days_in(home) - set(days) - kept):
        if not state.is_final(day):
            folder.remove_day(home, day)
    return written
