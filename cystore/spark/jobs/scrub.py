"""Every record's checksum, and consume queues and index against the log, in parallel; one row for each damaged range.

Finds what `cystore verify` finds and changes nothing; the store may be in use. Exit code 1: there is damage.

example:
  python -m cystore.spark scrub /var/lib/app/store --master 'local[4]' --json
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cystore.cli import facts
from cystore.cli.attached import attached
from cystore.cli.command import FOUND_WRONG, OK, store_config
from cystore.cli.progress import Report
from cystore.config import StoreConfig
from cystore.errors import StoreLockedError
from cystore.recovery import Bounds, Damage
from cystore.recovery.index_reader import list_readable_index
from cystore.recovery.log_pass import Key
from cystore.recovery.log_reader import LogReader
from cystore.recovery.queue_reader import list_queues
from cystore.recovery.verify import bounds_at_rest, strange_index
from cystore.recovery.verify_range import (
    SeenQueue,
    SeenRange,
    cut,
    joined_damage,
    verify_index_file,
    verify_queue,
    verify_range,
    without_false_borders,
)
from cystore.spark.jobs.running import (
    add_store_arguments,
    own_session,
    range_bytes_for,
    run_parts,
    settings_of,
)

HELP = "every checksum, and queues and index against the log"
COLUMNS = "file STRING, begin LONG, end LONG, kind STRING, detail STRING"
QUEUES_A_TASK = 64
ROWS_SHOWN = 1000


@dataclass(frozen=True)
class ScrubResult:
    """What a scrub found. `summary` counts; `damage` are all damaged ranges, in order."""

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

    `range_bytes` of log are a task's work (by default about 128 MiB, less for a small log); `settings` are fields of StoreConfig. A
    store that others use is compared up to the place where its log ended when the scrub began. Every executor needs the store under
    the same path. Raises StoreConfigError, StoreFormatError, StoreIOError, StoreLockedError.
    """
    root, config = settings_of(path, settings, read_only=True, services=())
    state = facts.state(root)
    if state.name == "exclusive":
        raise StoreLockedError(
            "one process has the store for itself, so nobody knows where its log ends", path=root
        )
    with _bounds(root, config, state) as (config, bounds, found, live):
        reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
        try:
            size = range_bytes_for(spark, bounds.end - bounds.begin, range_bytes)
            work = _Scrub(spark, root, config, bounds, report)
            damage = [*found, *work.run(size)]
            if live is not None:  # what was removed meanwhile is not missing
                minimum = live()
                damage = [each for each in damage if not _is_gone(each, bounds.begin, minimum)]
            whole = tuple(joined_damage(reader, damage))
        finally:
            reader.close()
    kinds = Counter(each.kind for each in whole)
    summary = {
        "path": str(root),
        "log_bytes": bounds.end - bounds.begin,
        **work.counts,
        "damaged_ranges": len(whole),
        **{f"damaged_{kind}": kinds[kind] for kind in ("record", "consume_queue", "index")},
        "opened_meanwhile": live is None and facts.state(root) != state,
    }
    return ScrubResult(summary, whole)


@contextmanager
def _bounds(root: Path, config: StoreConfig, state: facts.State) -> Iterator[Any]:
    """(configuration, bounds, damage behind them, what tells the log's minimum later): as `cystore verify` sees them."""
    if state.name == "live":
        with attached(root, config) as parts:
            control = parts.control
            dispatched = control.dispatched
            bounds = Bounds(control.min_physical_offset, control.wrote, dispatched, complete=False)
            yield parts.config, bounds, [], lambda: control.min_physical_offset
        return
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    try:
        bounds, found = bounds_at_rest(root, config, reader, abnormal=state.name == "crashed")
    finally:
        reader.close()
    if not reader.bases:
        bounds = dataclasses.replace(bounds, end=bounds.begin, dispatched=bounds.begin)
    yield config, bounds, found, None


def _is_gone(damage: Damage, before: int, minimum: int) -> bool:
    """Whether it is about records that the cleaner removed while they were looked at, or may be."""
    if minimum == before:
        return False
    return damage.begin < minimum if damage.kind != "consume_queue" else not damage.path.exists()


class _Scrub:
    """One scrub; `counts` is what it went through."""

    def __init__(
        self, spark: SparkSession, root: Path, config: StoreConfig, bounds: Bounds, report: Report | None
    ) -> None:
        self._spark, self._root, self._bounds, self._report = spark, root, bounds, report
        self._queues, queue_file_bytes = list_queues(root, config.mapped_file_size_consume_queue_bytes, [])
        self._config = dataclasses.replace(config, mapped_file_size_consume_queue_bytes=queue_file_bytes)
        self.counts = {"records": 0, "queues": 0, "index_files": 0, "tasks": 0}

    def run(self, range_bytes: int) -> Iterator[Damage]:
        """All damage, not put together yet."""
        if self._bounds.begin == self._bounds.end:
            return
        seen = self._ranges(range_bytes)
        for part in seen:
            yield from part.damage
        yield from self._ends(seen)
        self.counts["records"] = sum(part.records for part in seen)

    def _ranges(self, range_bytes: int) -> list[SeenRange]:
        parts, seen = cut(self._bounds, range_bytes), []
        while parts:
            self.counts["tasks"] += len(parts)
            work = partial(_verify_range, self._root, self._config, self._bounds)
            seen += run_parts(self._spark, "scrub", parts, work, self._report)
            seen, parts = without_false_borders(seen)
        return seen

    def _ends(self, seen: list[SeenRange]) -> Iterator[Damage]:
        """What queues and index files say beside the records."""
        queues: dict[Key, list[SeenQueue]] = {key: [] for key in self._queues}
        for part in seen:
            for one in part.queues:
                queues.setdefault(one.key, []).append(one)
        work: list[Any] = []
        if self._config.message_index_enable:
            readers, strange = list_readable_index(self._root, self._config)
            yield from map(strange_index, strange)
            work += [] if strange else [reader.path.name for reader in readers]
            self.counts["index_files"] = len(work)
        listed = sorted(queues.items())
        work += [listed[at : at + QUEUES_A_TASK] for at in range(0, len(listed), QUEUES_A_TASK)]
        self.counts["queues"], self.counts["tasks"] = len(listed), self.counts["tasks"] + len(work)
        broken = [each for part in seen for each in part.broken]
        whole = partial(_verify_end, self._root, self._config, self._bounds, broken)
        for found in run_parts(self._spark, "scrub queues and index", work, whole, self._report):
            yield from found


def _verify_range(root: Path, config: StoreConfig, bounds: Bounds, part: tuple[int, int]) -> SeenRange:
    return verify_range(root, config, bounds, *part)


def _verify_end(
    root: Path,
    config: StoreConfig,
    bounds: Bounds,
    broken: list[tuple[int, int]],
    part: str | list[tuple[Key, list[SeenQueue]]],
) -> list[Damage]:
    if isinstance(part, str):
        return verify_index_file(root, config, bounds, part)
    return [each for key, seen in part for each in verify_queue(root, config, bounds, broken, key, seen)]


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
    """Of the command."""
    add_store_arguments(parser)
    parser.add_argument("--output", metavar="DIRECTORY", help="the rows as Parquet too, in a new directory")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The command: its summary, with the first damaged ranges."""
    config = store_config(options)
    facts.state(options.path)  # an error here costs no session
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    size = None if options.range_mib is None else options.range_mib << 20
    with own_session("scrub", options.master) as spark:
        result = scrub(spark, options.path, range_bytes=size, report=options.report, **settings)
        if options.output is not None:
            result.frame(spark).write.parquet(options.output)
    rows: Iterable[dict[str, Any]] = map(_row, result.damage[:ROWS_SHOWN])
    return {**result.summary, "damage": list(rows)}


def exit_code(summary: dict[str, Any]) -> int:
    """1 where there is damage."""
    return FOUND_WRONG if summary["damaged_ranges"] else OK
