"""Reads a stream: micro-batches between positions of each store's log.

An offset has, for each store, the physical offset of a record and the identity of the store: {"stores":
{PATH: {"position": N, "id": ID, "log": RECORD, ...}}, "reads": OPTIONS}. No stream reads beyond the flushed position.
The log below it is durable and never changes. So a batch that Spark repeats from its checkpoint has the same rows,
after a kill of the driver and after a power cut on the store's host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cystore.columns.arrow import FOREVER, ReadSettings, RowFilter, plan_ranges
from cystore.derived.reading.snapshot import LogSnapshot
from cystore.engine.files.log_folders import log_paths
from cystore.errors import OffsetError
from cystore.spark.options import EARLIEST, LATEST, ReadOptions
from cystore.spark.source import followed_store
from cystore.spark.source.plan import (
    base_filter,
    check_loss,
    check_partitions,
    open_reading,
    partitions_of,
    queue_rules,
    selected,
    share_bytes,
    worth_bytes,
)
from cystore.spark.source.reading import read_partition
from cystore.spark.source.starting_timestamp import check_matched, first_at, rows_of
from cystore.store import MessageStore

Offset = dict[str, Any]


class Stores:
    """Opens a store for one read of its state at a time. A store that no other process has open is recovered into
    memory; that handle is reused until the store's directory changes. A store in use is closed at once, so that its
    last user can shut it down."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._kept: dict[str, tuple[tuple[int, ...], MessageStore]] = {}

    @contextmanager
    def look(self, path: str) -> Iterator[LogSnapshot]:
        seen = _times(path)
        kept = self._kept.pop(path, None)
        if kept is not None and kept[0] != seen:
            kept[1].close()
            kept = None
        store = open_reading(path, self._options) if kept is None else kept[1]
        try:
            snapshot = store.snapshot()
            yield snapshot
            if not snapshot.live:
                self._kept[path] = seen, store
        finally:
            if path not in self._kept:
                store.close()

    def close(self) -> None:
        for _, store in self._kept.values():
            store.close()
        self._kept = {}


def _times(path: str) -> tuple[int, ...]:
    places = (Path(path), *log_paths(Path(path)), Path(path, "checkpoint"))
    return tuple(place.stat().st_mtime_ns for place in places if place.exists())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query. `read` runs in tasks."""

    def __init__(self, options: ReadOptions, settings: ReadSettings, schema: StructType) -> None:
        self._options, self._settings, self._schema = options, settings, schema
        self._stores: Stores | None = None
        self._last: dict[str, int] | None = None  # with AvailableNow, where the query ends

    def __getstate__(self) -> dict[str, Any]:
        """The state for tasks, which open no store."""
        return {**self.__dict__, "_stores": None}

    def _look(self, path: str) -> Any:
        if self._stores is None:
            self._stores = Stores(self._options)
        return self._stores.look(path)

    # ------------------------------------------------------------------------------------------ offsets

    def initialOffset(self) -> Offset:
        """The start of a new query, by startingOffsets."""
        found = {}
        for path in self._options.paths():
            with self._look(path) as snapshot:
                start = self._start(snapshot)
                found[path] = {**start, **followed_store.noted(snapshot, start["position"])}
        return self._offset(found)

    def _offset(self, stores: Offset) -> Offset:
        return {"stores": stores, followed_store.READS: followed_store.choice_of(self._options)}

    def _start(self, snapshot: LogSnapshot) -> Offset:
        starting = self._options.starting
        queues = selected(self._options, snapshot)
        check_partitions("starting", starting, queues)
        check_matched(self._options, snapshot, queues, _end(snapshot))
        if starting.offset is not None:
            at = snapshot.minimum if starting.offset == EARLIEST else max(snapshot.flushed, snapshot.minimum)
            return {"position": at}
        if starting.timestamp_ms is not None:
            rows = RowFilter(in_queue=False, times_ms=(starting.timestamp_ms, FOREVER))
            places = next(_places(snapshot, snapshot.minimum, _end(snapshot), rows), None)
            return {"position": _end(snapshot) if places is None else places[0].as_py()}
        check_loss(self._options, snapshot)
        first = dict(starting.offsets or {})
        if starting.timestamps_ms is not None:
            times_ms = {queue: starting.timestamps_ms[queue] for queue in queues}
            found = first_at(snapshot, times_ms, snapshot.minimum, _end(snapshot))
            first = {queue: found.get(queue, LATEST) for queue in queues}
        for queue, offset in first.items():
            known = snapshot.queue_ranges[queue]
            first[queue] = {EARLIEST: known.min_offset, LATEST: known.max_offset}.get(offset, offset)
        places = [snapshot.place(*queue, offset) for queue, offset in first.items()]
        position = max(min(places, default=snapshot.dispatched), snapshot.minimum)
        return _with_first({"position": position}, first, snapshot)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch, within the limit."""
        paths = self._options.paths()
        stores = self._checked_stores(start, paths)
        found = {path: at for path, at in stores.items() if path not in paths}
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows is not None:
            size = self._options.max_bytes  # the user set both limits, and Spark passes on one
        backlog = {path: self._backlog(path, stores.get(path), rows) for path in paths if len(paths) > 1}
        by_backlog = sorted(
            paths, key=lambda path: backlog.get(path, 0)
        )  # a store with a larger backlog uses the room that a smaller one leaves
        for left, path in zip(range(len(paths), 0, -1), by_backlog, strict=True):
            with self._look(path) as snapshot:
                before = self._followed(path, snapshot, stores.get(path))
                begin = before or {"position": snapshot.minimum}
                first, last = self._room(path, snapshot, begin["position"])
                if size is not None:
                    last = _before_bytes(snapshot, first, last, max(1, size // left))
                    size = max(0, size - (last - first))
                if rows is not None:
                    wanted = self._rows(snapshot, _first_of(begin))
                    last, used = _after_rows(snapshot, first, last, wanted, max(1, rows // left))
                    rows = max(0, rows - used)
                end = {"position": last} if before else {"position": last, "first_seen": first}
                end |= followed_store.noted(snapshot, last, before)
                found[path] = _with_first(end, _first_of(begin), snapshot)
        return self._offset(found)

    def _backlog(self, path: str, at: Offset | None, rows: int | None) -> int:
        """The unread part's size: bytes of log, or, with a limit of `rows`, the number of rows up to that limit."""
        with self._look(path) as snapshot:
            before = self._followed(path, snapshot, at) or {"position": snapshot.minimum}
            first, last = self._room(path, snapshot, before["position"])
            if rows is None:
                return last - first
            return _after_rows(snapshot, first, last, self._rows(snapshot, _first_of(before)), rows)[1]

    # ------------------------------------------------------------------------------- which store, which rows

    def _checked_stores(self, offset: Offset, paths: list[str]) -> dict[str, Offset]:
        """The entry of each store in an offset, by the store's present path. Raises OffsetError if the offset's query
        chose other rows, and for a store that is not among `paths`."""
        followed_store.check_choice(self._options, offset)
        stores = {self._place_now(path, at, offset, paths): at for path, at in offset["stores"].items()}
        for path in sorted(stores.keys() - set(paths)):
            found_at = self._found_at(stores[path], [one for one in paths if one not in stores])
            if found_at is not None or self._options.fail_on_data_loss:
                raise followed_store.gone(path, found_at)
        return stores

    def _place_now(self, path: str, at: Offset, offset: Offset, paths: list[str]) -> str:
        """The present path of a store, by storeMoved. Raises OffsetError if the store is still at its old path, or if
        the query follows both paths."""
        to = self._options.moved.get(path, path)
        if to == path:
            return path
        if path in paths:
            with self._look(path) as snapshot:
                if followed_store.is_same(snapshot, at) is not False:
                    raise followed_store.not_moved(
                        path, to, "it is still at its old place, which this query reads"
                    )
        if to in offset["stores"]:
            raise followed_store.not_moved(
                path, to, "this query already follows it there: begin a query with another checkpointLocation"
            )
        return to

    def _found_at(self, at: Offset, places: list[str]) -> str | None:
        for place in places:
            with self._look(place) as snapshot:
                if followed_store.is_same(snapshot, at):
                    return place
        return None

    def _followed(self, path: str, snapshot: LogSnapshot, at: Offset | None) -> Offset | None:
        """The offset's entry for the store at a path; None for a store that is read from its beginning. Raises
        OffsetError if another store is there now. With failOnDataLoss=false the query reads that one as a new store."""
        if (
            at is None
            or self._options.moved.get(path) == path
            or followed_store.is_same(snapshot, at) is not False
        ):
            return at
        if self._options.fail_on_data_loss:
            raise followed_store.another(path, at, snapshot)
        return None

    # ------------------------------------------------------------------------------------------- bounds

    def _room(self, path: str, snapshot: LogSnapshot, position: int) -> tuple[int, int]:
        """The begin and the end of a batch without limits."""
        first = self._checked(path, snapshot, position)
        last = _end(snapshot)
        if self._last is not None:
            last = min(last, self._last.get(path, first))
        return first, max(first, last)

    def _checked(self, path: str, snapshot: LogSnapshot, position: int) -> int:
        """The position if the log still has it. Otherwise data was lost: raises OffsetError, or returns the nearest
        position with failOnDataLoss=false."""
        problem = None
        if position < snapshot.minimum:
            problem = f"records from {position} to {snapshot.minimum} were removed before they were read"
        elif position > snapshot.end:
            problem = (
                f"the log ends at {snapshot.end}, this query was at {position}: it is another store's log, or the log "
                "lost its end"
            )
        if problem is None:
            return position
        if self._options.fail_on_data_loss:
            raise OffsetError(f"{problem}; let failOnDataLoss be false to continue with the rest", path=path)
        return snapshot.minimum if position < snapshot.minimum else snapshot.end

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, else maxBytesPerTrigger, else none."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        """The end of each store, for the query's progress."""
        return {"stores": {path: {"position": at} for path, at in self._ends().items()}}

    def prepareForTriggerAvailableNow(self) -> None:
        """Lets the query end at the present ends of the stores."""
        self._last = self._ends()

    def _ends(self) -> dict[str, int]:
        found = {}
        for path in self._options.paths():
            with self._look(path) as snapshot:
                found[path] = _end(snapshot)
        return found

    # ----------------------------------------------------------------------------------------- a batch

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks that read between two offsets; the same offsets give the same tasks."""
        found: list[InputPartition] = []
        least = self._options.min_partitions
        paths = self._options.paths()
        before, after = self._checked_stores(start, paths), self._checked_stores(end, paths)
        for path, to in after.items():
            since = before.get(path, {"position": 0})
            if since == to or path not in paths:
                continue
            if "first_seen" in to:  # the query first saw this store in this batch
                since = {"position": to["first_seen"]}
            if since["position"] >= to["position"]:
                continue
            with self._look(path) as snapshot:
                if self._followed(path, snapshot, to) is None:
                    continue  # the batch read a store that is lost
                begin = self._checked(path, snapshot, since["position"])
                behind = self._checked(path, snapshot, to["position"])
                rows = self._rows(snapshot, _first_of(since))
                ranges = plan_ranges(snapshot, rows, begin=begin, end=behind)
                total = sum(part.size_bytes for part in ranges)
                share = share_bytes(worth_bytes(self._settings), total, self._options)
                found += partitions_of(snapshot, ranges, rows, least, share)
        return found

    def _rows(self, snapshot: LogSnapshot, first: dict[tuple[str, int], int]) -> RowFilter:
        """The wanted rows by the options. Of a queue whose starting offset lies ahead, only the rows from there on."""
        everywhere = replace(self._options, starting=replace(self._options.starting, **NO_BOUND))
        rows = queue_rules(everywhere, snapshot, base_filter(self._options))
        if not first:
            return rows
        queues = selected(self._options, snapshot)
        rules = [(*queue, first.get(queue, 0), FOREVER, -FOREVER, FOREVER) for queue in queues]
        return replace(rows, rules=tuple(rules))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one partition."""
        return read_partition(partition, self._settings, self._schema)

    def commit(self, end: Offset) -> None:
        """Does nothing: Spark keeps the checkpoint."""

    def stop(self) -> None:
        """Closes the stores."""
        if self._stores is not None:
            self._stores.close()


def _end(snapshot: LogSnapshot) -> int:
    """The end of the log for a stream: the flushed position while other processes use the store."""
    return snapshot.flushed if snapshot.live else snapshot.end


def _after_rows(snapshot: LogSnapshot, begin: int, end: int, rows: RowFilter, count: int) -> tuple[int, int]:
    """The begin of the first record after `count` wanted records, at most `end`; and the number of wanted records
    before it."""
    left = count
    for places in _places(snapshot, begin, end, rows):
        if len(places) > left:
            return places[left].as_py(), count
        left -= len(places)
    return end, count - left


def _before_bytes(snapshot: LogSnapshot, begin: int, end: int, size: int) -> int:
    """The begin of the last record that begins at most `size` bytes after `begin`. If the first record is larger, the
    begin of the second record."""
    best = begin
    if end - begin <= size:
        return end
    for places in _places(snapshot, begin, end, RowFilter(in_queue=False, physical=(begin + 1, FOREVER))):
        near = bisect_right(places, begin + size, key=lambda place: place.as_py())
        best = places[near - 1].as_py() if near else best
        if near < len(places):
            return best if best > begin else places[0].as_py()
    return best if best > begin else end


def _places(snapshot: LogSnapshot, begin: int, end: int, rows: RowFilter) -> Iterator[pa.Array]:
    """The physical offsets of wanted records, in batches."""
    for batch in rows_of(snapshot, begin, end, rows, ("physical_offset",)):
        yield batch.column(0)


NO_BOUND: dict[str, Any] = {
    "offset": EARLIEST,
    "timestamp_ms": None,
    "offsets": None,
    "timestamps_ms": None,
}


def _first_of(offset: Offset) -> dict[tuple[str, int], int]:
    return {
        (topic, int(queue_id)): first
        for topic, queues in offset.get("first", {}).items()
        for queue_id, first in queues.items()
    }


def _with_first(offset: Offset, first: dict[tuple[str, int], int], snapshot: LogSnapshot) -> Offset:
    """`offset` with the starting offset of each queue that has not reached it at the offset's position."""
    ahead: dict[str, dict[str, int]] = {}
    for (topic, queue_id), at in first.items():
        if snapshot.queue_offset_at(topic, queue_id, offset["position"]) < at:
            ahead.setdefault(topic, {})[str(queue_id)] = at
    return {**offset, "first": ahead} if ahead else offset
