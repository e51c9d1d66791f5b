"""Log records as Arrow record batches: for pandas, polars, DuckDB, and for Spark's executors.

`plan_ranges` makes a plan on the store's host; `read_ranges` needs only the segment files that the plan names. It
writes, locks and recovers nothing, and fills a batch's buffers directly from the mapped file.
"""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import pyarrow as pa

from cystore._native.memory.mapping import MappedFile
from cystore._native.record.record import STATUS_NAMES
from cystore._native.scan import columns as kernel
from cystore._native.scan.columns import ColumnReader
from cystore._native.scan.log_walk import LogWalker
from cystore.derived.reading.snapshot import LogRange
from cystore.errors import CorruptRecordError, OffsetError, StoreConfigError, StoreFormatError
from cystore.layout import LMQ_PREFIX
from cystore.store import MessageStore
from cystore.store import open as open_store
from cystore.system import files, platform
from cystore.system.links import real_path

OnCorruption = Literal["fail", "skip", "column"]

MISSING = "the segment is missing between others"
BATCH_ROWS = 16 * 1024
BATCH_BYTES = 4 * 1024 * 1024
BATCH_MAX = 0x3FFFFFFF  # Arrow counts a column's bytes in 31 bits
STEP_BYTES = 64 * 1024 * 1024  # after this many bytes a walk returns to Python, so that Ctrl-C works
FOREVER = (1 << 63) - 1

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())
_KEYS = pa.list_(pa.field("element", pa.string()))
# The first six have the names and meanings of Spark's Kafka source.
COLUMNS: dict[str, pa.DataType] = {
    "key": pa.string(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "physical_offset": pa.int64(),
    "tags": pa.string(),
    "keys": _KEYS,
    "properties": _MAP,
    "born_timestamp": _TIMESTAMP,
    "sys_flag": pa.int32(),
    "store": pa.string(),
}
# With on_corruption="column", each damaged range is one row: the reason, and the begin of the next record.
DAMAGE_COLUMNS: dict[str, pa.DataType] = {"corrupt": pa.string(), "corrupt_end": pa.int64()}


@dataclass(frozen=True)
class RowFilter:
    """The conditions on records; a record must meet all of them. Times are store timestamps in ms; ends are
    exclusive."""

    topics: tuple[str, ...] = ()
    queue_ids: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    offsets: tuple[int, int] = (0, FOREVER)
    times_ms: tuple[int, int] = (-FOREVER, FOREVER)
    physical: tuple[int, int] = (0, FOREVER)
    # (topic, queue id or -1, offsets begin, end, times begin, end): if there are rules, a record must fit one of them.
    rules: tuple[tuple[str, int, int, int, int, int], ...] = ()
    in_queue: bool = True

    def native_rules(self) -> list[tuple[bytes, int, int, int, int, int]]:
        """The rules for the kernel. Topics become rules too; rules of other topics are dropped."""
        rules: list[tuple[bytes, int, int, int, int, int]] = [
            (rule[0].encode(), *rule[1:]) for rule in self.rules if not self.topics or rule[0] in self.topics
        ]
        if self.rules and not rules:
            return [(b"", -1, 0, 0, 0, 0)]  # matches nothing
        return rules or [(topic.encode(), -1, -FOREVER, FOREVER, -FOREVER, FOREVER) for topic in self.topics]


@dataclass(frozen=True)
class ReadSettings:
    """How to read ranges. Picklable, because executors get it."""

    columns: tuple[str, ...] = tuple(COLUMNS)
    rows: RowFilter = field(default_factory=RowFilter)
    check_checksum: bool = True
    on_corruption: OnCorruption = "fail"
    fail_on_data_loss: bool = True
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in self.known]
        if unknown:
            raise StoreConfigError(f"no column {', '.join(unknown)}; the columns are {', '.join(self.known)}")
        if not self.columns:
            raise StoreConfigError(f"name at least one column of {', '.join(self.known)}")
        if len(set(self.columns)) != len(self.columns):
            raise StoreConfigError(f"a column is named twice: {', '.join(self.columns)}")
        if self.on_corruption not in get_args(OnCorruption):
            raise StoreConfigError(
                f"on_corruption must be one of {', '.join(get_args(OnCorruption))}, not {self.on_corruption!r}"
            )

    @property
    def known(self) -> dict[str, pa.DataType]:
        return {**COLUMNS, **DAMAGE_COLUMNS} if self.on_corruption == "column" else COLUMNS

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return pa.schema([(name, self.known[name]) for name in self.columns])


def to_arrow(
    store: str | os.PathLike[str] | MessageStore | Sequence[str | os.PathLike[str] | MessageStore],
    *,
    columns: Sequence[str] | None = None,
    topic: str | Sequence[str] = (),
    queue_id: int | Sequence[int] = (),
    tags: str | Sequence[str] = (),
    key: str | Sequence[str] = (),
    begin_ms: int | None = None,
    end_ms: int | None = None,
    begin_offset: int | None = None,
    end_offset: int | None = None,
    begin: int | None = None,
    end: int | None = None,
    transactions: bool = False,
    check_checksum: bool = True,
    on_corruption: OnCorruption = "fail",
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    **settings: Any,
) -> pa.RecordBatchReader:
    """The records of a store's log, in physical order, as a `pyarrow.RecordBatchReader`.

    `store` is an open store, the path of a store (in use or not, recovered or not), a glob, or several of these, which
    are read one after the other. For paths, `settings` are fields of StoreConfig. The reader contains the messages that
    are published at the time of the call. `columns` are names of `cystore.columns.arrow.COLUMNS` (default: all); fewer
    columns are faster. Each filter takes one value or several: `topic`, `queue_id`, `tags`, `key` (one of the keys, or
    the unique key). `begin_ms` and `end_ms` bound the store timestamp, `begin_offset` and `end_offset` the queue
    offset, `begin` and `end` the physical offset; each end is exclusive. `transactions` adds prepared and rolled back
    messages, which are in no consume queue.

    `on_corruption`: "fail" raises CorruptRecordError at the first damage, even at a known hole. "skip" continues after
    it. "column" gives a row for it, with the columns `corrupt` (the reason) and `corrupt_end` (its end). Bytes that are
    not UTF-8 become U+FFFD in text. Raises the errors of `cystore.open`, and StoreConfigError.
    """
    known = {**COLUMNS, **DAMAGE_COLUMNS} if on_corruption == "column" else COLUMNS
    rows = RowFilter(
        topics=own_topics(several("topic", topic, str)),
        queue_ids=several("queue_id", queue_id, int),
        tags=several("tags", tags, str),
        keys=several("key", key, str),
        offsets=_bounds("offset", begin_offset, end_offset, 0),
        times_ms=_bounds("ms", begin_ms, end_ms, -FOREVER),
        physical=_bounds("", begin, end, 0),
        in_queue=not transactions,
    )
    read = ReadSettings(
        columns=tuple(known if columns is None else columns),
        rows=rows,
        check_checksum=check_checksum,
        on_corruption=on_corruption,
        batch_rows=_size("batch_rows", batch_rows),
        batch_bytes=_size("batch_bytes", batch_bytes),
    )
    ranges: list[LogRange] = []
    for one in stores_of(store):
        with reading(one, settings) as opened:
            ranges += plan_ranges(opened.snapshot(), rows)
    return pa.RecordBatchReader.from_batches(read.schema, read_ranges(ranges, read))


def own_topics(names: Sequence[str]) -> tuple[str, ...]:
    """The names. Raises StoreConfigError for a light queue: its messages have other topics, so none would match."""
    for name in names:
        if name.startswith(LMQ_PREFIX):
            raise StoreConfigError(
                f"{name} is a light queue, and its messages have other topics: read it with store.get({name!r}, 0, 0), "
                "or name the topics of its messages"
            )
    return tuple(names)


def stores_of(
    given: str | os.PathLike[str] | MessageStore | Sequence[str | os.PathLike[str] | MessageStore],
) -> list[Path | MessageStore]:
    """The stores that paths and globs name now, and open stores; each store once. Raises StoreConfigError if no store
    is given, StoreFormatError for a glob without a match."""
    places = [given] if isinstance(given, (str, os.PathLike, MessageStore)) else list(given)
    found: dict[Path | MessageStore, None] = {}
    for place in places:
        if isinstance(place, MessageStore):
            found[place] = None
            continue
        found |= dict.fromkeys(map(Path, places_of(path_text(place))))
    if not found:
        raise StoreConfigError("no store to read: give a path, a glob or several of them")
    return list(found)


def places_of(text: str) -> list[str]:
    """The places on this host that a path or a glob names, with every link resolved, in order. A name that exists is
    that place, whatever its characters are; only otherwise `*`, `?` and `[...]` make a glob. Raises StoreFormatError
    for a glob without a match."""
    is_pattern = glob.has_magic(text) and not os.path.lexists(text)
    matches = sorted(glob.glob(text)) if is_pattern else [text]
    if not matches:
        raise StoreFormatError("no store matches", path=text)
    return [str(real_path(match)) for match in matches]


def path_text(place: object) -> str:
    """A store's path as given. Raises StoreConfigError for anything else."""
    text = os.fspath(place) if isinstance(place, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise StoreConfigError(f"stores: name a store by its path, not by {place!r}")
    return text


def reading(store: Path | MessageStore, settings: Mapping[str, Any]) -> AbstractContextManager[MessageStore]:
    """For a with block: an open store stays open; a path is opened for the block."""
    if isinstance(store, MessageStore):
        return nullcontext(store)
    return open_store(store, **{**settings, "read_only": True})


def several(name: str, given: Any, kind: type) -> tuple[Any, ...]:
    several = (
        (given,) if isinstance(given, kind) else tuple(given) if not isinstance(given, (str, int)) else None
    )
    if several is None or any(not isinstance(one, kind) or isinstance(one, bool) for one in several):
        raise StoreConfigError(f"{name} must be {kind.__name__} or several of them, not {given!r}")
    return several


def _bounds(name: str, begin: int | None, end: int | None, least: int) -> tuple[int, int]:
    for value in (begin, end):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise StoreConfigError(f"begin and end {name} must be whole numbers, not {value!r}")
    found = least if begin is None else begin, FOREVER if end is None else end
    if not -FOREVER <= found[0] <= FOREVER or not -FOREVER <= found[1] <= FOREVER:
        raise StoreConfigError(f"begin and end {name} must fit in 64 bits: {found[0]}, {found[1]}")
    return found


def _size(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= BATCH_MAX:
        raise StoreConfigError(f"{name} must be a whole number from 1 to {BATCH_MAX}, not {value!r}")
    return value


# ------------------------------------------------------------------------------------------------------ plan


class Log(Protocol):
    """The facts of a log that a plan needs: a LogSnapshot, or the listing of a copy."""

    minimum: int
    end: int

    def segments(self, begin: int, end: int) -> Iterator[LogRange]: ...
    def ends_before(self, ranges: Iterable[LogRange], begin_ms: int) -> Iterator[LogRange]: ...
    def begins_after(self, ranges: Iterable[LogRange], end_ms: int) -> Iterator[LogRange]: ...


def plan_ranges(
    snapshot: Log, rows: RowFilter, *, begin: int | None = None, end: int | None = None
) -> list[LogRange]:
    """The parts of segments in [begin, end) that may contain wanted records (default: the whole log). `begin` and `end`
    are record boundaries."""
    begin = snapshot.minimum if begin is None else max(begin, snapshot.minimum)
    end = snapshot.end if end is None else min(end, snapshot.end)
    ranges: Iterable[LogRange] = snapshot.segments(begin, end)
    ranges = (part for part in ranges if part.end > rows.physical[0] and part.begin < rows.physical[1])
    if rows.times_ms[0] > -FOREVER:
        ranges = snapshot.ends_before(ranges, rows.times_ms[0])
    if rows.times_ms[1] < FOREVER:
        ranges = snapshot.begins_after(ranges, rows.times_ms[1])
    return list(ranges)


# ------------------------------------------------------------------------------------------------------ read


def read_ranges(ranges: Iterable[LogRange], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The records of ranges as batches of `settings.schema`; none is empty.

    Raises CorruptRecordError, and OffsetError for a segment that was removed after the plan was made, unless the
    settings allow them.
    """
    reader = new_reader(settings)
    store, loss = None, settings.fail_on_data_loss
    for part in ranges:
        if part.store != store:
            yield from taken(reader, settings, store)
            store = part.store
        data = _bytes_of(part, loss)
        if data is not None:
            yield from _read_range(reader, part, *data, settings)
        elif loss:
            yield from damaged(reader, part, part.begin, part.end, MISSING, settings)
    yield from taken(reader, settings, store)


def read_range(
    part: LogRange, data: MappedFile | bytes | memoryview, first: int, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """`read_ranges` for one range in memory. `data` begins at physical offset `first`."""
    reader = new_reader(settings)
    yield from _read_range(reader, part, data, first, settings)
    yield from taken(reader, settings, part.store)


def new_reader(settings: ReadSettings) -> ColumnReader:
    rows = settings.rows
    wanted = sum(kernel.COLUMN_BITS.get(name, 0) for name in settings.columns)
    return ColumnReader(
        wanted,
        settings.batch_rows,
        settings.batch_bytes,
        check_checksum=settings.check_checksum,
        in_queue=rows.in_queue,
        physical_begin=rows.physical[0],
        physical_end=rows.physical[1],
        offsets=rows.offsets if rows.offsets != (0, FOREVER) else None,
        times_ms=rows.times_ms,
        queue_ids=rows.queue_ids,
        tags=[tag.encode() for tag in rows.tags],
        keys=[key.encode() for key in rows.keys],
        rules=rows.native_rules(),
    )


def _bytes_of(part: LogRange, fail_on_data_loss: bool) -> tuple[MappedFile | bytes, int] | None:
    """A range's bytes and the physical offset of the first byte. None if the segment is missing and the settings allow
    that, or if it is a known hole.

    A file on a network file system is not mapped: another host's change to it could kill this process.
    """
    path = Path(part.path)
    try:
        length = path.stat(follow_symlinks=False).st_size
        if part.base + length < part.end:
            raise StoreFormatError(
                f"the file has {length} bytes, too few for its records", path=path, offset=part.begin
            )
        if platform.may_be_remote(path.parent):
            with files.opened(path) as fd:
                return files.pread_full(fd, part.begin - part.base, part.size_bytes, path), part.begin
        return files.map_file(path, part.base, length, writable=False), part.base
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreFormatError(
                "the store does not exist on the host that reads it: every host needs it under the same path",
                path=part.store,
            ) from None
        if not fail_on_data_loss or any(hole[0] <= part.begin and part.end <= hole[1] for hole in part.holes):
            return None
        raise OffsetError(
            "the segment was removed after the read was planned, so its records are lost; read again (in Spark, "
            "failOnDataLoss=false reads "
            "the rest)",
            path=path,
            offset=part.begin,
        ) from None
    except OSError as error:
        with files.translated(path):
            raise error


def _read_range(
    reader: ColumnReader,
    part: LogRange,
    data: MappedFile | bytes | memoryview,
    first: int,
    settings: ReadSettings,
) -> Iterator[pa.RecordBatch]:
    at, file_end = part.begin, part.base + part.file_bytes
    while at < part.end:
        hole = next((hole for hole in part.holes if hole[1] > at), None)
        if hole is not None and hole[0] <= at:
            end = min(hole[1], part.end)
            yield from damaged(
                reader, part, at, end, "a hole: recovery finds no valid record in it", settings
            )
            at = end
            continue
        limit = min(part.end, part.end if hole is None else hole[0])
        # The step must not cut a record, so it only bounds where records begin.
        status = reader.run(data, first, at, limit, file_end, min(at + STEP_BYTES, limit))
        at = reader.position
        if status == kernel.FULL:
            yield from taken(reader, settings, part.store)
        elif status == kernel.BLANK:
            return
        elif status == kernel.INVALID:
            reason = STATUS_NAMES[reader.reason]
            following = _next_record(part, data, first, at, limit)
            yield from damaged(reader, part, at, following, reason, settings)
            at = following


def _next_record(
    part: LogRange, data: MappedFile | bytes | memoryview, first: int, position: int, limit: int
) -> int:
    """The begin of the next valid record after damage, or `limit`."""
    scanner = LogWalker(follow_queues=False)
    scanner.move(position, part.base + part.file_bytes)
    while scanner.position < limit:
        found = scanner.find(data, limit - first, first)
        if found >= 0:
            return found
        if not scanner.needed:
            break
        scanner.move(scanner.position + 1, part.base + part.file_bytes)  # no record reaches past the limit
    return limit


def read_missing(ranges: Iterable[LogRange], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The rows or the error of `on_corruption` for missing segments."""
    reader = new_reader(settings)
    for part in ranges:
        yield from damaged(reader, part, part.begin, part.end, MISSING, settings)


def damaged(
    reader: ColumnReader, part: LogRange, begin: int, end: int, reason: str, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    if settings.on_corruption == "skip":
        return
    yield from taken(reader, settings, part.store)
    if settings.on_corruption == "fail":
        raise CorruptRecordError(
            f"the log is damaged up to {end}: {reason}; `cystore verify` lists all damage; on_corruption skip "
            "or column "
            "(onCorruption in Spark) continues behind it",
            path=part.path,
            offset=begin,
        )
    row = {"physical_offset": begin, "store": part.store, "corrupt": reason, "corrupt_end": end}
    arrays = [pa.array([row.get(name)], settings.known[name]) for name in settings.columns]
    yield pa.RecordBatch.from_arrays(arrays, schema=settings.schema)


def taken(reader: ColumnReader, settings: ReadSettings, store: str | None) -> Iterator[pa.RecordBatch]:
    """The reader's rows as a batch, if there are any."""
    rows, buffers = reader.take()
    if rows:
        arrays = [_array(name, rows, buffers, store, settings) for name in settings.columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=settings.schema)


def _array(
    name: str, rows: int, buffers: dict[str, Any], store: str | None, settings: ReadSettings
) -> pa.Array:
    kind = settings.known[name]
    if name == "store":
        return pa.repeat(_scalar(store or ""), rows)
    if name in DAMAGE_COLUMNS:
        return pa.nulls(rows, kind)
    if name == "keys":
        offsets = pa.py_buffer(buffers["keys_begin"])
        return pa.Array.from_buffers(kind, rows, [None, offsets], children=[_text(buffers["keys"])])
    if name == "properties":
        pairs = pa.StructArray.from_arrays(
            [_text(buffers["names"]), _text(buffers["values"])],
            fields=[kind.key_field, kind.item_field],
        )
        offsets = pa.py_buffer(buffers["properties_begin"])
        return pa.Array.from_buffers(kind, rows, [None, offsets], children=[pairs])
    if name in ("key", "tags"):
        return _text(buffers[name], kind, pa.py_buffer(buffers[f"{name}_valid"]))
    if name in ("value", "topic"):
        return _text(buffers[name], kind)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(buffers[name])])


def _scalar(text: str) -> pa.Scalar:
    """A scalar without `pa.scalar`. That function imports pandas, if installed, to test whether the value is one of
    pandas' objects. The import costs each of Spark's workers most of a second, and leaves many objects that the garbage
    collector visits after every task."""
    data = text.encode()
    offsets = struct.pack("=2i", 0, len(data))
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]


def _text(
    buffers: tuple[Any, Any], kind: pa.DataType | None = None, valid: pa.Buffer | None = None
) -> pa.Array:
    offsets, data = (pa.py_buffer(buffer) for buffer in buffers)
    return pa.Array.from_buffers(kind or pa.string(), offsets.size // 4 - 1, [valid, offsets, data])
