"""Makes consume queues and index anew from the log, in parallel, while no other process has the store open.

The job stages them in STORE/rebuild, checks them, then renames them into place. A kill before the renames leaves the
store unchanged. After a kill during the renames, the next open makes queues and index anew, as `cystore rebuild` does.
Run the job again, or just open the store. Exit code 1: durable records are damaged or lost.

example:
  python -m cystore.spark rebuild /var/lib/app/store --master 'local[4]'
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

import cystore
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import DIRECTORY as QUEUES
from cystore.derived.files.consume_queue_ext import DIRECTORY as EXT_QUEUES
from cystore.derived.files.index import DIRECTORY as INDEX_FILES
from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.segments import Mode
from cystore.errors import CorruptRecordError, StoreConfigError
from cystore.operate import facts
from cystore.operate.command import FOUND_WRONG, OK
from cystore.operate.progress import Report
from cystore.recovery.outcome import RecoveredState
from cystore.recovery.recover import recover
from cystore.recovery.walk.abort_file import ABORT_NAME, mark_undispatched
from cystore.spark.jobs import rebuild_parts
from cystore.spark.jobs.rebuild_parts import NEW, OLD, STAGE, Rebuild, Row, Written
from cystore.spark.jobs.running import (
    add_store_arguments,
    is_connect,
    own_session,
    range_bytes_for,
    reported,
    settings_given,
    settings_of,
    sound,
)
from cystore.system import files, ownership, platform
from cystore.system.store_lock import StoreLocks
from cystore.verify import Bounds
from cystore.verify.ranges import split

HELP = "consume queues and index anew from the log"
DERIVED = (QUEUES, EXT_QUEUES, INDEX_FILES)


def rebuild(
    spark: SparkSession,
    path: str | Path,
    *,
    range_bytes: int | None = None,
    report: Report | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Makes consume queues and index of the store at `path` anew; returns counts.

    First, recovery repairs the log, as in an open of the store. If tasks then find damage in a part that recovery had
    no reason to read, all of the log is recovered and the work begins again. Executors write to the store's directory,
    which must be on a local file system. Raises StoreLockedError, StoreFormatError, StoreConfigError, StoreIOError,
    StoreFullError, CorruptRecordError.
    """
    if is_connect(spark):
        raise StoreConfigError(
            "rebuild cannot run through Spark Connect, which has no RDDs: use a session of the store's host, "
            "or `cystore rebuild`"
        )
    root, config = settings_of(path, settings, exclusive=True, services=())
    facts.state(root)
    platform.check_writable_file_system(root, allow_any=config.allow_any_file_system)
    if not config.allow_any_owner:
        ownership.check(root, ownership.group_id(config.group))
    with _alone(root):
        files.clear_temporaries(root)
        state = _recovered(root, config, report)
        holes = state.report.new_holes
        try:
            written = _staged(spark, root, config, state, range_bytes, report)
        except CorruptRecordError:
            mark_undispatched(root)
            state = _recovered(root, config, report)
            holes += state.report.new_holes
            written = _staged(spark, root, config, state, range_bytes, report)
        swap(root, state)
    with cystore.open(root, config=config, progress=report) as store:
        at, found = store.stats(), store.recovery
    return {
        "path": str(root),
        "log_bytes": state.wrote - state.min_physical_offset,
        "queues": len(written) - 1,
        "entries": sum(one.entries for one in written if one.key != rebuild_parts.INDEX),
        "keys": sum(one.entries for one in written if one.key == rebuild_parts.INDEX),
        "dispatched_again_bytes": at["dispatched"] - found.dispatch_from,
        "new_holes": len(holes) + len(found.new_holes),
        "lost": state.report.lost is not None,
    }


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    locks = StoreLocks(root, read_only=False)
    try:
        with locks.gate():
            locks.take_alone()
        yield
    finally:
        locks.close()


def _recovered(root: Path, config: StoreConfig, report: Report | None) -> RecoveredState:
    return recover(root, config, Mode.WRITE, abnormal=(root / ABORT_NAME).exists(), progress=report)


# ------------------------------------------------------------------------------------------------- staging


def _staged(
    spark: SparkSession,
    root: Path,
    config: StoreConfig,
    state: RecoveredState,
    range_bytes: int | None,
    report: Report | None,
) -> list[Written]:
    """Makes all queues and the index in STORE/rebuild/new, durably. Raises CorruptRecordError for a log that must be
    recovered first."""
    remove_stage(root)
    config = dataclasses.replace(
        config,
        mapped_file_size_commit_log_bytes=state.commit_log_file_bytes
        or config.mapped_file_size_commit_log_bytes,
        mapped_file_size_consume_queue_bytes=state.consume_queue_file_bytes
        or config.mapped_file_size_consume_queue_bytes,
    )
    bounds = Bounds(state.min_physical_offset, state.wrote, state.wrote, complete=True)
    parts = split(bounds, range_bytes_for(spark, bounds.end - bounds.begin, range_bytes))
    files.make_directory(root / STAGE / NEW)
    found: list[Any] = []
    while parts:
        found = _written(spark, Rebuild(root, config, bounds), parts, report)
        before, parts = parts, _without_false_borders(parts, found)
        if parts == before:
            break
        remove_stage(root)
        files.make_directory(root / STAGE / NEW)
    written: list[Written] = sound(found)
    sound(outcome.damage for one in written for outcome in one.outcome if outcome.damage is not None)
    _check(root, bounds, written)
    for one in written:
        _put_together(root, one)
    return written


def _written(
    spark: SparkSession, rebuild: Rebuild, parts: list[tuple[int, int]], report: Report | None
) -> list[Any]:
    tasks = 1 + spark.sparkContext.defaultParallelism

    def write(rows: Iterable[Row]) -> Iterator[Any]:
        attempt = f"attempt-{TaskContext.get().taskAttemptId()}"  # type: ignore[union-attr]
        return rebuild_parts.write_all(rebuild, attempt, rows)

    rows = spark.sparkContext.parallelize(parts, len(parts)).flatMap(partial(rebuild_parts.gather, rebuild))
    placed = rows.repartitionAndSortWithinPartitions(
        tasks, partitionFunc=partial(rebuild_parts.partition_of, partitions=tasks)
    )
    with reported(spark, "rebuild", report):
        return placed.mapPartitions(write).collect()


def _without_false_borders(parts: list[tuple[int, int]], found: list[Any]) -> list[tuple[int, int]]:
    """The parts again; a part that overran its end is joined with the next part. Files staged with such a border must
    not be used."""
    overran = {
        outcome.part
        for one in found
        if isinstance(one, Written)
        for outcome in one.outcome
        if outcome.position > outcome.end
    }
    kept: list[tuple[int, int]] = []
    joins = False
    for part in parts:
        if joins:
            kept[-1] = kept[-1][0], part[1]
        else:
            kept.append(part)
        joins = part in overran
    return kept


def _check(root: Path, bounds: Bounds, written: list[Written]) -> None:
    """Checks that the ranges meet, and that every gathered entry was written."""
    gathered = sorted(
        (outcome for one in written for outcome in one.outcome),
        key=lambda outcome: (outcome.begin, outcome.end),
    )
    at = bounds.begin
    for outcome in gathered:
        if outcome.begin != at:
            raise CorruptRecordError("the log changed while it was read", path=root, offset=at)
        at = outcome.end
    wanted = sum(outcome.entries for outcome in gathered)
    found = sum(one.entries for one in written if one.key != rebuild_parts.INDEX)
    if wanted != found or (gathered and at != bounds.end):
        raise CorruptRecordError(f"{found} of {wanted} entries were staged", path=root, offset=at)


def _put_together(root: Path, written: Written) -> None:
    """Moves the files of one task to those of the other tasks."""
    topic, queue_id = written.key
    names = (f"{QUEUES}/{topic}/{queue_id}", f"{EXT_QUEUES}/{topic}/{queue_id}")
    for name in (INDEX_FILES,) if written.key == rebuild_parts.INDEX else names:
        source = Path(written.folder, name)
        if source.is_dir():
            files.move(source, root / STAGE / NEW / name)


# ------------------------------------------------------------------------------------------------ swapping


def swap(root: Path, state: RecoveredState) -> None:
    """Renames the staged files into place. For a process that is alone in the store.

    First it marks the store as crashed with nothing dispatched. A kill after that leaves some folders old, new or
    missing, and the next open makes all of them anew from the log. At last the checkpoint records that queues and index
    are on disk.
    """
    mark_undispatched(root)
    for name in DERIVED:
        if (root / name).is_dir():
            files.move(root / name, root / STAGE / OLD / name)
        if (root / STAGE / NEW / name).is_dir():
            files.move(root / STAGE / NEW / name, root / name)
    checkpoint = Checkpoint(root, Mode.WRITE)
    checkpoint.logics_timestamp = checkpoint.index_timestamp = state.last_store_timestamp_ms
    checkpoint.index_watermark = state.wrote
    checkpoint.sync()
    checkpoint.close()
    remove_stage(root)


def remove_stage(root: Path) -> None:
    """Removes the files that a run left in STORE/rebuild."""
    if (root / STAGE).is_dir():
        files.remove_below(root / STAGE)
        files.remove_directory(root / STAGE)


# --------------------------------------------------------------------------------------------- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    add_store_arguments(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the command; returns counts."""
    settings = settings_given(options)
    facts.state(options.path)  # an error here costs no session
    size = None if options.range_mib is None else options.range_mib << 20
    with own_session("rebuild", options.master, options.conf) as spark:
        return rebuild(spark, options.path, range_bytes=size, report=options.report, **settings)


def exit_code(summary: dict[str, Any]) -> int:
    """1 if records are damaged or lost."""
    return FOUND_WRONG if summary["new_holes"] or summary["lost"] else OK
