"""The begin of a read with a starting timestamp: each partition's first message at or after it, and the error for a
partition without one.

This module only reads the log and its queues, so a crash leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cystore.columns.arrow import (
    FOREVER,
    ReadSettings,
    RowFilter,
    plan_ranges,
    read_ranges,
)
from cystore.columns.parquet import may_hold
from cystore.derived.reading.snapshot import LogSnapshot
from cystore.errors import OffsetError, StoreError
from cystore.services.retention.archive_mark import ArchiveContent
from cystore.spark.options import STRATEGY, PerQueue, ReadOptions

Queue = tuple[str, int]


def check_matched(
    options: ReadOptions,
    snapshot: LogSnapshot,
    queues: list[Queue],
    end: int,
    archive: ArchiveContent | None = None,
) -> None:
    """Checks, as Kafka does, that each partition that is read has a message at or after its starting timestamp, below
    `end` or archived. Raises OffsetError for the first partition without such a message, or without any message. No
    check if startingOffsetsByTimestampStrategy is latest."""
    starting = options.starting
    if options.starting_strategy == "latest":
        return
    if starting.timestamps_ms is not None:
        name, times_ms = "startingOffsetsByTimestamp", dict(starting.timestamps_ms)
    elif starting.timestamp_ms is not None:
        name = "startingTimestamp"
        times_ms = dict.fromkeys({*queues, *options.assigned}, starting.timestamp_ms)
    else:
        return
    missing = sorted(_unmatched(snapshot, times_ms, end, archive))
    if missing:
        topic, queue_id = missing[0]
        others = f" (and {len(missing) - 1} more partitions of this store)" if len(missing) > 1 else ""
        raise OffsetError(
            f"no message of {topic}/{queue_id}{others} was stored at or after {times_ms[missing[0]]}, as "
            f"{name} asks; let {STRATEGY} "
            "be latest to begin there with the next message, or choose an earlier time",
            path=snapshot.path,
        )


def _unmatched(
    snapshot: LogSnapshot, times_ms: PerQueue, end: int, archive: ArchiveContent | None
) -> set[Queue]:
    """The queues without a message at or after their time. If times ascend, the last entry of a queue decides.
    Otherwise the log is searched; the undispatched part of the log is always searched."""
    behind: PerQueue = {}
    anywhere: PerQueue = {}
    for queue, at_ms in times_ms.items():
        try:
            last = snapshot.last_message(*queue, end)
        except StoreError:  # the read itself reports damage
            anywhere[queue] = at_ms
            continue
        if last is None or (last.store_timestamp_ms < at_ms and last.record_format == "cystore"):
            behind[queue] = at_ms
        elif last.store_timestamp_ms < at_ms:
            anywhere[queue] = at_ms
    found = {
        *first_at(snapshot, behind, max(snapshot.dispatched, snapshot.minimum), end),
        *first_at(snapshot, anywhere, snapshot.minimum, end),
    }
    files = [one for part in archive.manifests for one in part.files] if archive is not None else []
    return {
        queue
        for queue in {**behind, **anywhere}.keys() - found
        if not any(may_hold(one, RowFilter(rules=(_from(queue, times_ms[queue]),))) for one in files)
    }


def _from(queue: Queue, at_ms: int) -> tuple[str, int, int, int, int, int]:
    return *queue, 0, FOREVER, at_ms, FOREVER


def first_at(snapshot: LogSnapshot, times_ms: PerQueue, begin: int, end: int) -> PerQueue:
    """The offset of each queue's first message in [begin, end) that was stored at or after its time; queues without
    such a message are left out. Searches the log, because it may be ahead of the queues."""
    found: PerQueue = {}
    if not times_ms:
        return found
    rules = tuple(_from(queue, at_ms) for queue, at_ms in times_ms.items())
    rows = RowFilter(rules=rules, times_ms=(min(times_ms.values()), FOREVER))
    for batch in rows_of(snapshot, begin, end, rows, ("topic", "partition", "offset")):
        for row in batch.to_pylist():
            found.setdefault((row["topic"], row["partition"]), row["offset"])
        if len(found) == len(times_ms):
            break
    return found


def rows_of(
    snapshot: LogSnapshot, begin: int, end: int, rows: RowFilter, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Columns of wanted records, for the plan; the read itself handles damaged or removed records."""
    settings = ReadSettings(
        columns=columns,
        rows=rows,
        check_checksum=False,
        on_corruption="skip",
        fail_on_data_loss=False,
    )
    return read_ranges(plan_ranges(snapshot, rows, begin=begin, end=end), settings)
