"""Ranges of the log as Parquet files, and rows back from them.

`write_range` writes the files of an archive and verifies them: it makes each file durable, reads it back from the disk,
and compares all rows with the log, which it reads once more with checksums. Files are in topic=T/date=YYYY-MM-DD (the
date of the store timestamp, in UTC), with rows sorted by queue id and queue offset. Only the folder's name contains
the topic, as in Hive. A crash leaves files that no manifest names.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cystore._native.record.checksum import crc32c
from cystore.columns.archive_layout import place_of
from cystore.columns.arrow import (
    BATCH_BYTES,
    COLUMNS,
    DAMAGE_COLUMNS,
    FOREVER,
    ReadSettings,
    RowFilter,
    read_ranges,
)
from cystore.derived.reading.snapshot import LogRange
from cystore.errors import CorruptRecordError, OffsetError, StoreError
from cystore.layout import CONSTANTS, IN_QUEUE
from cystore.services.retention.archive_mark import ArchivedFile, range_name
from cystore.system import files

WRITE_BYTES = 128 * 1024 * 1024  # of rows in memory at once
READ_ROWS = 16 * 1024
EPOCH = date(1970, 1, 1)
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # in a folder's name: the value is missing
DAYS = 1 << 32  # more than a date32 can hold
EVERYTHING = RowFilter(in_queue=False)
OF_LOG = tuple(name for name in COLUMNS if name != "store")
IN_FILES = tuple(name for name in OF_LOG if name != "topic")
SCHEMA = pa.schema([(name, COLUMNS[name]) for name in IN_FILES])
WITH_TOPIC = ("topic", *IN_FILES)
REPEATED = ["topic", "tags", "properties.key_value.key"]  # worth a dictionary
NUMBERS = ("partition", "offset", "timestamp", "physical_offset", "born_timestamp", "sys_flag")
TRANSACTION_MASK = CONSTANTS["SYS_FLAG_TRANSACTION_MASK"][0]


@dataclass(frozen=True)
class WrittenRange:
    """The result of writing a range of the log."""

    begin: int
    end: int
    rows: int
    files: tuple[ArchivedFile, ...]
    damaged: tuple[tuple[int, int, str], ...] = ()


# ------------------------------------------------------------------------------------------------------ write


def write_range(
    part: LogRange,
    run: Path,
    data: Path,
    *,
    skip_damage: bool = False,
    with_topic: bool = False,
    write_bytes: int = WRITE_BYTES,
) -> WrittenRange:
    """Writes the records of a range below the folder `data`, and verifies the files. `data` is on the file system of
    `run`. With `with_topic` each file has the topic as a column too.

    Raises CorruptRecordError for files that differ from the log, and for the first damage; with `skip_damage` it
    reports each damage and continues. Raises OffsetError for a missing segment.
    """
    settings = ReadSettings(
        columns=(*OF_LOG, *(DAMAGE_COLUMNS if skip_damage else ())),
        rows=EVERYTHING,
        on_corruption="column" if skip_damage else "fail",
        batch_bytes=min(BATCH_BYTES, write_bytes),
    )
    written: list[ArchivedFile] = []
    damaged: list[tuple[int, int, str]] = []
    rows = 0
    for piece, table in _pieces(part, settings, write_bytes):
        if skip_damage:
            table, found = _without_damage(table)
            damaged += found
        made = _write_table(table, run, data, WITH_TOPIC if with_topic else IN_FILES)
        rows += verify_files(piece, data, made, settings)
        written += made
    return WrittenRange(part.begin, part.end, rows, tuple(written), tuple(damaged))


def _pieces(part: LogRange, settings: ReadSettings, write_bytes: int) -> Iterator[tuple[LogRange, pa.Table]]:
    """The rows of a range as tables that fit into memory, each with its part of the range."""
    batches: list[pa.RecordBatch] = []
    begin, size = part.begin, 0
    for batch in read_ranges([part], settings):
        if size >= write_bytes:
            at = batch.column("physical_offset")[0].as_py()
            yield replace(part, begin=begin, end=at), pa.Table.from_batches(batches, settings.schema)
            batches, begin, size = [], at, 0
        batches.append(batch)
        size += batch.nbytes
    yield replace(part, begin=begin), pa.Table.from_batches(batches, settings.schema)


def _without_damage(table: pa.Table) -> tuple[pa.Table, list[tuple[int, int, str]]]:
    is_damage = pc.is_valid(table["corrupt"])
    found = table.filter(is_damage).select(["physical_offset", "corrupt_end", "corrupt"]).to_pylist()
    rows = table.filter(pc.invert(is_damage)).drop_columns(list(DAMAGE_COLUMNS))
    return rows, [(row["physical_offset"], row["corrupt_end"], row["corrupt"]) for row in found]


def _write_table(table: pa.Table, run: Path, data: Path, columns: tuple[str, ...]) -> list[ArchivedFile]:
    if not table.num_rows:
        return []
    topics = table["topic"].combine_chunks().dictionary_encode()
    days = pc.cast(pc.cast(pc.cast(table["timestamp"], pa.date32()), pa.int32()), pa.int64())
    order = pa.table(
        {
            "file": pc.add(pc.multiply(pc.cast(topics.indices, pa.int64()), DAYS), pc.add(days, DAYS // 2)),
            "partition": table["partition"],
            "offset": table["offset"],
        }
    )
    wanted = pc.sort_indices(order, sort_keys=[(name, "ascending") for name in order.column_names])
    rows, keys = table.select(columns).take(wanted), order["file"].take(wanted)
    found, first = [], 0
    for key, count in _runs(keys):
        topic, day = topics.dictionary[key // DAYS].as_py(), _date(key % DAYS - DAYS // 2)
        found.append(_write_file(rows.slice(first, count), topic, day, run, data))
        first += count
    return found


def _runs(column: pa.ChunkedArray) -> list[tuple[int, int]]:
    """(value, its count) for sorted numbers."""
    counted = pc.value_counts(column)
    return list(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))


def _date(days: int) -> str:
    """A date's name in a folder; outside the calendar, Hive's name for a missing date."""
    try:
        return str(EPOCH + timedelta(days=days))
    except OverflowError:
        return HIVE_NULL


def _write_file(rows: pa.Table, topic: str, day: str, run: Path, data: Path) -> ArchivedFile:
    physical = pc.min_max(rows["physical_offset"]).as_py()
    # The name belongs to this attempt alone: if Spark starts a task twice, the second replaces no verified file.
    name = f"{range_name(physical['min'], physical['max'])}-{uuid.uuid4().hex[:12]}.parquet"
    path = data / f"topic={_folder_value(topic)}" / f"date={day}" / name
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        use_dictionary=REPEATED,
        column_encoding=dict.fromkeys(NUMBERS, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
        sorting_columns=[
            pq.SortingColumn(rows.column_names.index("partition")),
            pq.SortingColumn(rows.column_names.index("offset")),
        ],
    )
    content = memoryview(sink.getvalue()).cast("B")
    files.write_whole(run, path, content, keep_last=False)
    times = pc.min_max(pc.cast(rows["timestamp"], pa.int64())).as_py()
    queues, first = {}, 0
    for queue_id, count in _runs(rows["partition"]):
        queues[queue_id] = (rows["offset"][first].as_py(), rows["offset"][first + count - 1].as_py())
        first += count
    return ArchivedFile(
        path=str(path.relative_to(data)),
        topic=topic,
        rows=rows.num_rows,
        size_bytes=len(content),
        crc32c=crc32c(content),
        physical=(physical["min"], physical["max"]),
        times_ms=(times["min"] // 1000, times["max"] // 1000),
        queues=queues,
    )


# ----------------------------------------------------------------------------------------------------- verify


def verify_files(part: LogRange, data: Path, made: Iterable[ArchivedFile], settings: ReadSettings) -> int:
    """The number of rows in a range of the log. Checks that these files hold each row once, with every column as in
    the log.

    Reads the log again, and the files from the disk. Raises CorruptRecordError for the first difference.
    """
    expected = pa.Table.from_batches(list(read_ranges([part], settings)), settings.schema)
    if "corrupt" in expected.column_names:
        expected, _ = _without_damage(expected)
    tables = [_read_whole(data, one) for one in made]
    found = pa.concat_tables([expected.schema.empty_table(), *tables])
    if found.num_rows != expected.num_rows:
        raise CorruptRecordError(
            f"the archive's files hold {found.num_rows} rows, the log {expected.num_rows} from here to {part.end}; the "
            "archive mark did not move, "
            "run the job again",
            path=data,
            offset=part.begin,
        )
    in_order = found["physical_offset"].equals(expected["physical_offset"])
    places = None if in_order else pc.sort_indices(found["physical_offset"])
    for name in expected.column_names:
        ours, theirs = found[name] if places is None else found[name].take(places), expected[name]
        if not ours.equals(theirs):
            at = next((n for n in range(len(ours)) if ours[n] != theirs[n]), 0)
            raise CorruptRecordError(
                f"column {name} of the archive's files differs from the log; the archive mark did not move, "
                "run the job again",
                path=data,
                offset=expected["physical_offset"][at].as_py(),
            )
    return expected.num_rows


def _read_whole(data: Path, one: ArchivedFile) -> pa.Table:
    """A file's rows with the log's columns; the topic comes from the folder's name."""
    path = data / one.path
    content = files.read_back(path)
    if crc32c(content) != one.crc32c:
        raise CorruptRecordError(
            "the disk returns other bytes than were written; the archive mark did not move", path=path
        )
    rows = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read()
    topic = pa.repeat(pa.scalar(topic_of(one.path), pa.string()), rows.num_rows)
    if "topic" not in rows.column_names:
        rows = rows.append_column("topic", topic)
    elif not rows["topic"].equals(pa.chunked_array([topic])):
        raise CorruptRecordError(
            "a file has rows of another topic than its folder; nothing was released", path=path
        )
    return rows.select(OF_LOG).cast(pa.schema([(n, COLUMNS[n]) for n in OF_LOG]))


def _folder_value(topic: str) -> str:
    """A topic in a folder's name. The name that Hive gives to a missing value is escaped: Spark and DuckDB then read it
    as the topic that it is."""
    return f"%5F{topic[1:]}" if topic == HIVE_NULL else quote(topic, safe="")


def topic_of(path: str) -> str:
    """The topic in the name of a file's folder."""
    folder = next(part for part in Path(path).parts if part.startswith("topic="))
    return unquote(folder.removeprefix("topic="))


# ------------------------------------------------------------------------------------------------------- read


def may_hold(one: ArchivedFile, rows: RowFilter) -> bool:
    """Whether a file may contain wanted rows."""
    queues = one.queues if not rows.queue_ids else [n for n in one.queues if n in rows.queue_ids]
    if (rows.topics and one.topic not in rows.topics) or not queues:
        return False
    if one.physical[1] < rows.physical[0] or one.physical[0] >= rows.physical[1]:
        return False
    if one.times_ms[1] < rows.times_ms[0] or one.times_ms[0] >= rows.times_ms[1]:
        return False
    if not any(one.queues[n][1] >= rows.offsets[0] and one.queues[n][0] < rows.offsets[1] for n in queues):
        return False
    return not rows.rules or any(
        rule[0] == one.topic
        and any(
            n in (rule[1], n if rule[1] < 0 else rule[1])
            and one.queues[n][1] >= rule[2]
            and one.queues[n][0] < rule[3]
            for n in queues
        )
        and one.times_ms[1] >= rule[4]
        and one.times_ms[0] < rule[5]
        for rule in rows.rules
    )


def read_files(
    folder: Path, wanted: Sequence[ArchivedFile], store: str, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of archived files as batches of `settings.schema`; none is empty. `store` is the value of that column.

    Raises CorruptRecordError for a damaged file, OffsetError for a missing file (unless the settings allow that).
    """
    needed = [name for name in IN_FILES if name in settings.columns or name in _filtered(settings.rows)]
    for one in wanted:
        path = place_of(folder, one)
        if not path.exists():
            if not settings.fail_on_data_loss:
                continue
            raise OffsetError(
                "a file of the archive does not exist: is its folder mounted on this host? Bring it back from "
                "a copy, or let "
                "failOnDataLoss be false to read the rest",
                path=path,
                offset=one.physical[0],
            )
        try:
            with _opened(path, one, settings) as source:
                yield from _read_file(source, one, store, settings, needed or ["physical_offset"])
        except StoreError:
            raise
        except (OSError, KeyError, pa.ArrowException) as error:
            raise CorruptRecordError(
                f"a file of the archive cannot be read: {error}; bring it back from a copy of the archive",
                path=path,
                offset=one.physical[0],
            ) from error


@contextlib.contextmanager
def _opened(path: Path, one: ArchivedFile, settings: ReadSettings) -> Iterator[pa.NativeFile]:
    """The file to read from. With a check of its checksum, the whole file is read; without, only the needed parts.
    (Parquet's checksums do not cover page heads and the footer, where one flipped bit can hide rows.)"""
    if not settings.check_checksum:
        with files.opened(path) as fd, pa.OSFile(f"/proc/self/fd/{fd}") as source:
            yield source
        return
    content = files.read_all(path)
    if (len(content), crc32c(content)) != (one.size_bytes, one.crc32c):
        raise CorruptRecordError(
            "a file of the archive is damaged; bring it back from a copy of the archive",
            path=path,
            offset=one.physical[0],
        )
    yield pa.BufferReader(content)


def _read_file(
    source: pa.NativeFile, one: ArchivedFile, store: str, settings: ReadSettings, needed: list[str]
) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(name, COLUMNS[name]) for name in needed])
    with pq.ParquetFile(source) as file:
        if file.metadata.num_rows != one.rows:
            raise CorruptRecordError(
                f"{file.metadata.num_rows} rows in a file of the archive, but {one.rows} in its manifest; bring the "
                "file back from a copy",
                path=one.path,
            )
        for batch in file.iter_batches(batch_size=READ_ROWS, columns=needed):
            table = pa.Table.from_batches([batch]).select(needed).cast(schema)
            keep = _mask(table, one.topic, settings.rows)
            if keep is not None:
                table = table.filter(keep)
            for found in table.combine_chunks().to_batches():
                yield _shown(found, one.topic, store, settings)


def _shown(batch: pa.RecordBatch, topic: str, store: str, settings: ReadSettings) -> pa.RecordBatch:
    same = {"topic": topic, "store": store}
    arrays = []
    for name in settings.columns:
        if name in same:
            arrays.append(pa.repeat(pa.scalar(same[name], pa.string()), batch.num_rows))
        elif name in DAMAGE_COLUMNS:
            arrays.append(pa.nulls(batch.num_rows, settings.known[name]))
        else:
            arrays.append(batch.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=settings.schema)


def _filtered(rows: RowFilter) -> set[str]:
    """The columns that a filter uses."""
    found = {"sys_flag"} if rows.in_queue else set()
    for name, value, everything in (
        ("partition", rows.queue_ids, ()),
        ("tags", rows.tags, ()),
        ("keys", rows.keys, ()),
        ("properties", rows.keys, ()),
        ("offset", rows.offsets, (0, FOREVER)),
        ("timestamp", rows.times_ms, (-FOREVER, FOREVER)),
        ("physical_offset", rows.physical, (0, FOREVER)),
    ):
        if value != everything:
            found.add(name)
    return found | {"partition", "offset", "timestamp"} if rows.rules else found


def _mask(table: pa.Table, topic: str, rows: RowFilter) -> pa.ChunkedArray | None:
    """A mask of the rows that the filter wants; None for all rows. `may_hold` has checked the topic already."""
    wants = []
    if rows.in_queue:
        kind = pc.bit_wise_and(table["sys_flag"], pa.scalar(TRANSACTION_MASK, pa.int32()))
        wants.append(pc.is_in(kind, value_set=pa.array(IN_QUEUE, pa.int32())))
    if rows.queue_ids:
        wants.append(pc.is_in(table["partition"], value_set=pa.array(rows.queue_ids, pa.int32())))
    if rows.tags:
        wants.append(pc.is_in(table["tags"], value_set=pa.array(rows.tags, pa.string())))
    if rows.keys:
        wants.append(_has_key(table, pa.array(rows.keys, pa.string())))
    for name, bounds, everything in (
        ("offset", rows.offsets, (0, FOREVER)),
        ("timestamp", rows.times_ms, (-FOREVER, FOREVER)),
        ("physical_offset", rows.physical, (0, FOREVER)),
    ):
        if bounds != everything:
            wants.append(_between(table[name], *bounds))
    if rows.rules:
        fitting = [
            _fits(table, rule) for rule in rows.rules if rule[0] == topic
        ]  # at least one, because `may_hold` has checked that
        any_of = fitting[0]
        for other in fitting[1:]:
            any_of = pc.or_(any_of, other)
        wants.append(any_of)
    if not wants:
        return None
    mask = wants[0]
    for other in wants[1:]:
        mask = pc.and_(mask, other)
    return mask


def _between(column: pa.ChunkedArray, begin: int, end: int) -> pa.ChunkedArray:
    """A mask of the rows in [begin, end); times are in ms."""
    numbers = column
    if pa.types.is_timestamp(column.type):
        numbers = pc.cast(column, pa.int64())
        begin, end = (max(-FOREVER, min(FOREVER, bound * 1000)) for bound in (begin, end))
    low = pc.greater_equal(numbers, pa.scalar(begin, pa.int64()))
    return pc.and_(low, pc.less(numbers, pa.scalar(end, pa.int64())))


def _fits(table: pa.Table, rule: tuple[str, int, int, int, int, int]) -> pa.ChunkedArray:
    _, queue_id, begin, end, begin_ms, end_ms = rule
    fits = pc.and_(_between(table["offset"], begin, end), _between(table["timestamp"], begin_ms, end_ms))
    return fits if queue_id < 0 else pc.and_(fits, pc.equal(table["partition"], queue_id))


def _has_key(table: pa.Table, keys: pa.Array) -> pa.ChunkedArray:
    """Whether one of a record's keys, or its unique key, is wanted."""
    listed = table["keys"].combine_chunks()
    hits = pc.filter(pc.list_parent_indices(listed), pc.is_in(pc.list_flatten(listed), value_set=keys))
    rows = pa.array(range(table.num_rows), hits.type)
    unique = pc.map_lookup(table["properties"].combine_chunks(), "UNIQ_KEY", "last")
    return pa.chunked_array([pc.or_(pc.is_in(rows, value_set=hits), pc.is_in(unique, value_set=keys))])
