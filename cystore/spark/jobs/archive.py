"""Archives expiring segments to Parquet before they may be removed.

Each task writes and verifies one range of the log by itself (`cystore.columns.parquet.write_range`), so no message
passes through the JVM. `cystore.columns.archiver` describes the order of the steps, and what a kill leaves behind.

example:
  python -m cystore.spark archive /var/lib/app/store /mnt/archive/app
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from cystore.columns.archive_formats import check_format
from cystore.columns.archiver import (
    EXPIRING_WITHIN_H,
    STEP_BYTES,
    Mapper,
    Task,
    archive_store,
    check_steps,
)
from cystore.columns.parquet import WrittenRange
from cystore.derived.reading.snapshot import LogRange
from cystore.errors import CorruptRecordError, OffsetError
from cystore.operate.command import add_settings
from cystore.reports.report_folder import existing_store, outside_of
from cystore.spark.jobs.running import add_master, own_session, settings_given
from cystore.spark.jobs.spread import spread
from cystore.store import open as open_store

HELP = "write expiring segments to Parquet, verify them, and let cleaning remove them"


def archive(
    spark: SparkSession,
    store: str,
    folder: str,
    *,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Archives the store in directory `store` with the executors of a session; call it on the store's host.
    `settings` are fields of StoreConfig. `options` and errors are those of `cystore.columns.archiver.archive_store`.
    Raises StoreFormatError if there is no store. Returns the summary."""
    with open_store(existing_store(store), **{"services": "none", **(settings or {})}) as opened:
        return archive_store(opened, folder, mapper=on_executors(spark), **options).as_dict()


def on_executors(spark: SparkSession) -> Mapper:
    """Runs each range's task on the cluster. Raises an error about the store's content here again. All other errors are
    left to Spark, which tries the task again: they may be the fault of one host."""

    def run(task: Task, parts: Sequence[LogRange]) -> list[WrittenRange]:
        written = []
        for one in spread(spark, parts, partial(_outcome, task)):
            if isinstance(one, Exception):
                raise one
            written.append(one)
        return written

    return run


def _outcome(task: Task, part: LogRange) -> WrittenRange | CorruptRecordError | OffsetError:
    try:
        return task(part)
    except (CorruptRecordError, OffsetError) as error:
        return error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("store", metavar="STORE", help="directory of the store, on this host")
    parser.add_argument(
        "folder", metavar="FOLDER", help="the archive's folder; every executor needs it under this path"
    )
    parser.add_argument(
        "--format",
        help="parquet, delta or iceberg; the first run decides it (default: parquet)",
    )
    parser.add_argument(
        "--table",
        metavar="URL",
        help="where the table of format delta or iceberg is, as s3://bucket/path (default: in FOLDER); the "
        "first run decides it",
    )
    parser.add_argument(
        "--expiring-within-h",
        type=float,
        default=EXPIRING_WITHIN_H,
        metavar="HOURS",
        help="archive segments that file_reserved_time_h lets expire within this number of hours (%(default)s)",
    )
    parser.add_argument("--all", action="store_true", help="archive every full segment, however young")
    parser.add_argument(
        "--skip-damage",
        action="store_true",
        help="leave damaged places out and list them in the manifest, instead of ending with an error",
    )
    parser.add_argument(
        "--restore",
        action="store_true",
        help="the store has lost its archive mark: continue behind the newest manifest in FOLDER",
    )
    parser.add_argument(
        "--step-bytes",
        type=int,
        default=STEP_BYTES,
        metavar="BYTES",
        help="write a manifest after this amount of log; a kill loses at most this (%(default)s)",
    )
    add_master(parser)
    add_settings(parser)


def run(options: argparse.Namespace, spark: SparkSession | None = None) -> dict[str, Any]:
    """Runs the command in the given session, or in its own. Returns the summary."""
    folder = outside_of([existing_store(options.store)], options.folder)
    check_format(options.format)
    check_steps(options.expiring_within_h, options.step_bytes)
    settings = settings_given(options)
    own = own_session("archive", options.master, options.conf)
    with own if spark is None else nullcontext(spark) as session:
        return archive(
            session,
            options.store,
            str(folder),
            settings=settings,
            format=options.format,
            table=options.table,
            expiring_within_h=options.expiring_within_h,
            all_sealed=options.all,
            skip_damage=options.skip_damage,
            restore=options.restore,
            step_bytes=options.step_bytes,
            report=getattr(options, "report", None),
        )
