"""From options to partitions, on the driver: the only place where stores are opened.

A partition names segment files and ranges in them, so a task only opens files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cystore.columns.arrow import FOREVER, ReadSettings, RowFilter, plan_ranges
from cystore.columns.sealed import SealedLog
from cystore.derived.reading.snapshot import (
    PIECE_BYTES,
    LogRange,
    LogRun,
    LogSnapshot,
    packed,
    packed_evenly,
    runs_of,
)
from cystore.errors import CorruptRecordError, OffsetError, StoreConfigError
from cystore.spark.options import EARLIEST, LATEST, Bound, PerQueue, ReadOptions
from cystore.spark.source.included_archive import archive_of, archive_partitions, border_of
from cystore.spark.source.starting_timestamp import check_matched
from cystore.store import MessageStore
from cystore.store import open as open_store

PARTITIONS_MAX = 10_000
# Numbers and times are read so fast that 128 MiB of them take no longer than the start and end of a task.
NUMBERS_PIECE_BYTES = 4 * PIECE_BYTES
CORES_SHARE = 4  # a task for each core has a quarter of that at least
KEY_LOOKUPS_MAX = 256  # of keys times topics; beyond that a scan is asked for
EVERY_MATCH = (1 << 31) - 1


@dataclass
class LogPartition(InputPartition):
    """The input of one task."""

    runs: tuple[LogRun, ...]
    rows: RowFilter

    @property
    def ranges(self) -> tuple[LogRange, ...]:
        return tuple(part for run in self.runs for part in run.ranges())

    @property
    def size_bytes(self) -> int:
        return sum(run.end - run.begin for run in self.runs)


def open_reading(path: str, options: ReadOptions) -> MessageStore:
    return open_store(path, **{**options.settings, "read_only": True})


def selected(options: ReadOptions, snapshot: LogSnapshot | SealedLog) -> list[tuple[str, int]]:
    """The queues that the options choose."""
    return [queue for queue in snapshot.queue_ranges if options.takes(*queue)]


def base_filter(options: ReadOptions) -> RowFilter:
    """The options' bounds on rows; reads no store."""
    return RowFilter(topics=options.topics, keys=options.keys, tags=options.tags, in_queue=options.in_queue)


def queue_rules(
    options: ReadOptions,
    snapshot: LogSnapshot | SealedLog,
    rows: RowFilter,
    archived: Mapping[tuple[str, int], int] | None = None,
) -> RowFilter:
    """`rows` with the rules of bounds and choices for each queue. Raises StoreConfigError if offsets do not name
    exactly the chosen queues, OffsetError for offsets that were removed and are not in the archive (`archived`: the
    first offset of each queue there)."""
    starting, ending = options.starting, options.ending
    times = (
        rows.times_ms[0] if starting.timestamp_ms is None else max(rows.times_ms[0], starting.timestamp_ms),
        rows.times_ms[1] if ending.timestamp_ms is None else min(rows.times_ms[1], ending.timestamp_ms),
    )
    rows = replace(rows, times_ms=times)
    by_queue = starting.per_queue is not None or ending.per_queue is not None or bool(options.assigned)
    if not by_queue and options.topic_pattern is None:
        return rows
    queues = selected(options, snapshot)
    for which, bound in (("starting", starting), ("ending", ending)):
        check_partitions(which, bound, queues)
    if not by_queue:
        return replace(
            rows, rules=tuple(_rule(topic) for topic in sorted({topic for topic, _ in queues})) or NOTHING
        )
    check_loss(options, snapshot, archived)
    rules = []
    for topic, queue_id in queues:
        first = _of(starting.offsets, topic, queue_id, 0)
        behind = _of(ending.offsets, topic, queue_id, FOREVER)
        earliest = _of(starting.timestamps_ms, topic, queue_id, -FOREVER)
        latest = _of(ending.timestamps_ms, topic, queue_id, FOREVER)
        rules.append((topic, queue_id, first, behind, earliest, latest))
    return replace(rows, rules=tuple(rules) or NOTHING)


def _rule(topic: str) -> tuple[str, int, int, int, int, int]:
    return topic, -1, 0, FOREVER, -FOREVER, FOREVER


NOTHING = (("", -1, 0, 0, 0, 0),)


def _of(bounds: PerQueue | None, topic: str, queue_id: int, otherwise: int) -> int:
    value = otherwise if bounds is None else bounds.get((topic, queue_id), otherwise)
    return otherwise if value in (EARLIEST, LATEST) else value


def check_partitions(which: str, bound: Bound, queues: list[tuple[str, int]]) -> None:
    """Checks, as Kafka does, that offsets by partition name each partition that is read, and no other."""
    if bound.per_queue is None:
        return
    missing, unknown = set(queues) - set(bound.per_queue), set(bound.per_queue) - set(queues)
    if missing or unknown:
        what = "does not name" if missing else "names"
        names = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in sorted(missing or unknown)[:5])
        why = (
            "the option must name every partition that is read; option topic chooses fewer"
            if missing
            else ("which is not a partition that is read")
        )
        raise StoreConfigError(f"{which}Offsets {what} {names}: {why}")


def check_loss(
    options: ReadOptions,
    snapshot: LogSnapshot | SealedLog,
    archived: Mapping[tuple[str, int], int] | None = None,
) -> None:
    """Raises OffsetError for requested offsets that do not exist any more, or not yet."""
    for bound in (options.starting, options.ending):
        for (topic, queue_id), offset in (bound.offsets or {}).items():
            found = snapshot.queue_ranges[topic, queue_id]
            lowest = min(found.min_offset, (archived or {}).get((topic, queue_id), found.min_offset))
            if offset >= 0 and not lowest <= offset <= found.max_offset and options.fail_on_data_loss:
                raise OffsetError(
                    f"offset {offset} of {topic}/{queue_id} is not between {lowest} and {found.max_offset}, "
                    "the existing "
                    "offsets: records are lost; let failOnDataLoss be false to read the rest",
                    path=snapshot.path,
                )


def worth_bytes(settings: ReadSettings) -> int:
    """The bytes of log that are worth a task, by the wanted columns."""
    only_numbers = all(pa.types.is_primitive(kind) for kind in settings.schema.types)
    return NUMBERS_PIECE_BYTES if only_numbers else PIECE_BYTES


def share_bytes(worth: int, total_bytes: int, options: ReadOptions) -> int:
    """The bytes of log that are worth a task in a read of `total_bytes`: less than `worth` if cores would be idle
    otherwise."""
    cores = options.cores or len(os.sched_getaffinity(0))
    return max(worth // CORES_SHARE, min(worth, -(-total_bytes // cores)))


def piece_bytes(
    total_bytes: int, min_partitions: int | None, worth: int | None = None, stores: int = 1
) -> int:
    """The size of a partition: large enough to be worth a task, small enough for the requested number of partitions.
    `total_bytes` is the size of one store; `stores` is the number of stores."""
    size = max(worth or PIECE_BYTES, total_bytes * stores // PARTITIONS_MAX)
    return size if min_partitions is None else max(1, min(size, total_bytes // min_partitions))


def partitions_of(
    snapshot: LogSnapshot,
    ranges: Sequence[LogRange],
    rows: RowFilter,
    least: int | None,
    worth: int | None = None,
    stores: int = 1,
) -> list[LogPartition]:
    """The partitions of one store, from its ranges; each partition begins with a record. `stores` is the number of
    stores in the read."""
    total = sum(part.size_bytes for part in ranges)
    size, at_most = piece_bytes(total, least, worth, stores), least is not None
    pieces = (
        piece for part in ranges for piece in snapshot.pieces(part.begin, part.end, size, at_most=at_most)
    )
    if at_most:
        packs = packed(pieces, size, at_most=True)
    else:  # of equal sizes, because the slowest task decides; a size that lacks one record is large enough
        packs = packed_evenly(pieces, max(1, total * 10 // (size * 9)))
    return [LogPartition(runs_of(pack), rows) for pack in packs]


def batch_partitions(options: ReadOptions, rows: RowFilter, settings: ReadSettings) -> list[InputPartition]:
    """The partitions of a batch; each store is read up to its published end at the time of the plan."""
    worth = smallest = worth_bytes(settings)
    paths = options.paths()
    least = None if options.min_partitions is None else -(-options.min_partitions // max(1, len(paths)))
    archives: list[InputPartition] = []
    found: list[LogPartition] = []
    for path in paths:
        with open_reading(path, options) as store:
            snapshot = store.snapshot()
            archive = archive_of(store, snapshot, options)
            wanted = queue_rules(options, snapshot, rows, None if archive is None else archive.queue_begins)
            check_matched(options, snapshot, selected(options, snapshot), snapshot.end, archive)
            archives += archive_partitions(archive, snapshot, wanted, least)
            begin = border_of(archive, snapshot)
            ranges = by_key(store, snapshot, wanted, options, begin) if wanted.keys else None
            if ranges is None:
                ranges = plan_ranges(snapshot, wanted, begin=begin)
            share = share_bytes(worth, sum(part.size_bytes for part in ranges) * len(paths), options)
            found += partitions_of(snapshot, ranges, wanted, least, share, len(paths))
            smallest = min(smallest, share)
    return [*archives, *(found if options.min_partitions is not None else together(found, smallest))]


def together(partitions: Iterable[LogPartition], worth: int) -> Iterator[LogPartition]:
    """Joins small partitions of several stores that are read in the same way."""
    for _, alike in groupby(partitions, key=lambda partition: partition.rows):
        found = list(alike)
        yield from (one for one in found if one.size_bytes >= worth)
        rests = [part for one in found if one.size_bytes < worth for part in one.ranges]
        yield from (LogPartition(runs_of(pack), found[0].rows) for pack in packed(rests, worth))


def by_key(
    store: MessageStore, snapshot: LogSnapshot, rows: RowFilter, options: ReadOptions, begin: int
) -> list[LogRange] | None:
    """The records from `begin` on that the index finds for the wanted keys, and the log that the index does not cover
    yet. None if a scan is better."""
    topics = sorted({topic for topic, queue_id in selected(options, snapshot)})
    topics = [topic for topic in topics if not rows.topics or topic in rows.topics]
    if len(topics) * len(rows.keys) > KEY_LOOKUPS_MAX or not rows.in_queue:
        return None
    places: dict[int, int] = {}
    try:
        for topic in topics:
            for key in rows.keys:
                for message in store.query(topic, key, EVERY_MATCH):
                    places[message.physical_offset] = message.size_bytes
    except CorruptRecordError:
        return None  # the scan reports it, or steps over it
    found = [
        snapshot.part(at, at + size)
        for at, size in sorted(places.items())
        if begin <= at < snapshot.dispatched
    ]
    return [*found, *plan_ranges(snapshot, rows, begin=max(begin, snapshot.dispatched))]
