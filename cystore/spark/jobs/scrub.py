"""Checks every record's checksum, and compares consume queues and index with the log, in parallel; gives one row for
each damaged range.

The job finds the same damage as `cystore verify` and changes nothing; the store may be in use. Exit code 1: there is
damage.

example:
  python -m cystore.spark scrub /var/lib/app/store --master 'local[4]' --json
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cystore.config import StoreConfig
from cystore.errors import StoreLockedError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK
from cystore.operate.progress import Report
from cystore.operate.store_parts import attached
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.log_reader import LogReader
from cystore.reports.report_folder import outside_of
from cystore.spark.jobs.running import (
    add_store_arguments,
    own_session,
    range_bytes_for,
    run_parts,
    settings_given,
    settings_of,
)
from cystore.verify import Bounds
from cystore.verify.parallel import RangeBytes, VerifyParts, Workers, verify_at_rest
from cystore.verify.ranges import joined_damage

HELP = "every checksum, and queues and index against the log"
COLUMNS = "file STRING, begin LONG, end LONG, kind STRING, detail STRING"
ROWS_SHOWN = 1000


@dataclass(frozen=True)
class ScrubResult:
    """The findings of a scrub. `summary` has counts; `damage` has all damaged ranges, in order."""

    summary: dict[str, Any]
    damage: tuple[Damage, ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """A row for each damaged range: `file`, `begin`, `end`, `kind`, `detail`; see cystore.recovery.Damage."""
        return spark.createDataFrame([tuple(row.values()) for row in map(_row, self.damage)], COLUMNS)


def scrub(
    spark: SparkSession,
    path: str | Path,
    *,
    range_bytes: int | None = None,
    report: Report | None = None,
    **settings: Any,
) -> ScrubResult:
    """Compares the files of the store at `path` with each other.

    A task reads `range_bytes` of log (by default about 128 MiB, less for a small log); `settings` are fields of
    StoreConfig. If other processes use the store, it is compared up to the end that its log had when the scrub began.
    Every executor needs the store under the same path. Raises StoreConfigError, StoreFormatError, StoreIOError,
    StoreLockedError.
    """
    root, config = settings_of(path, settings, read_only=True, services=())
    state = facts.state(root)
    if state.name == "exclusive":
        raise StoreLockedError(
            "a process has the store open exclusively, so the end of its log is unknown: end it, or try again",
            path=root,
        )
    size = partial(range_bytes_for, spark, wanted=range_bytes)
    workers = partial(run_parts, spark, report=report)
    if state.name == "live":
        work, whole = _in_use(root, config, size, workers)
    else:
        work, whole = verify_at_rest(root, config, size, workers, abnormal=state.name == "crashed")
    kinds = Counter(each.kind for each in whole)
    summary = {
        "path": str(root),
        "log_bytes": work.bounds.end - work.bounds.begin,
        **work.counts,
        "damaged_ranges": len(whole),
        **{f"damaged_{kind}": kinds[kind] for kind in ("record", "consume_queue", "index")},
        "opened_meanwhile": state.name != "live" and facts.state(root) != state,
    }
    return ScrubResult(summary, tuple(whole))


def _in_use(
    root: Path, config: StoreConfig, range_bytes: RangeBytes, workers: Workers
) -> tuple[VerifyParts, list[Damage]]:
    """Scrubs a store in use, up to the present end of its log."""
    with attached(root, config) as parts:
        control = parts.control
        dispatched = control.dispatched
        bounds = Bounds(control.min_physical_offset, control.wrote, dispatched, complete=False)
        work = VerifyParts(root, parts.config, bounds, range_bytes, workers)
        minimum = control.min_physical_offset  # what was removed meanwhile is not missing
    kept = [damage for damage in work.damage if not _is_gone(damage, bounds.begin, minimum)]
    reader = LogReader(root, parts.config.mapped_file_size_commit_log_bytes)
    try:
        return work, joined_damage(reader, kept)
    finally:
        reader.close()


def _is_gone(damage: Damage, before: int, minimum: int) -> bool:
    """Whether damage concerns, or may concern, records that the cleaner removed during the check."""
    if minimum == before:
        return False
    return damage.begin < minimum if damage.kind != "consume_queue" else not damage.path.exists()


def _row(damage: Damage) -> dict[str, Any]:
    return {
        "file": str(damage.path),
        "begin": damage.begin,
        "end": damage.end,
        "kind": damage.kind,
        "detail": damage.reason,
    }


# --------------------------------------------------------------------------------------------- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    add_store_arguments(parser)
    parser.add_argument(
        "--output", metavar="DIRECTORY", help="also write the rows as Parquet, into a new directory"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; returns its summary, with the first damaged ranges."""
    settings = settings_given(options)
    facts.state(options.path)  # an error here costs no session
    output = None if options.output is None else outside_of([options.path], options.output)
    size = None if options.range_mib is None else options.range_mib << 20
    with own_session("scrub", options.master, options.conf) as spark:
        result = scrub(spark, options.path, range_bytes=size, report=options.report, **settings)
        if output is not None:
            result.frame(spark).write.parquet(str(output))
    rows: Iterable[dict[str, Any]] = map(_row, result.damage[:ROWS_SHOWN])
    return {**result.summary, "damage": list(rows)}


def exit_code(summary: dict[str, Any]) -> int:
    """1 if there is damage."""
    return FOUND_WRONG if summary["damaged_ranges"] else OK
