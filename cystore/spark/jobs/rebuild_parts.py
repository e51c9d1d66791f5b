"""The parts of a rebuild that run on executors: they gather entries from ranges of the log, and write a queue's files
from them.

Tasks write under STORE/rebuild, each attempt of a task in its own folder, so a task that Spark runs twice does no harm.
The classes of dispatch make the files, over a private control block in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from cystore._native.derived import entries as kernel
from cystore._native.derived import queue_ext
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.checksum import crc32c
from cystore._native.record.record import STATUS_NAMES
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueue
from cystore.derived.files.index import IndexFiles
from cystore.derived.files.index_layout import ENTRY_BYTES as INDEX_ENTRY_BYTES
from cystore.derived.files.index_layout import HEADER_BYTES, SLOT_BYTES
from cystore.engine.files.segments import Mode
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.engine.manifest.manifest import read_damaged_ranges, read_given_up, read_removed
from cystore.errors import CorruptRecordError, StoreError, StoreIOError
from cystore.layout import CONSTANTS, QUEUE_ENTRY
from cystore.recovery.walk.log_reader import LogReader
from cystore.spark.jobs.running import Failed
from cystore.system import files, platform
from cystore.verify.bounds import Bounds
from cystore.verify.ranges import boundary

UNIT_ROOM = 64  # more than a unit without a bitmap and the end mark after it
STAGE, NEW, OLD = "rebuild", "new", "old"
RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
TIMESTAMP = struct.Struct("=q")
INDEX = ("", -1)  # in place of a queue

QueueKey = tuple[str, int]
Row = tuple[tuple[QueueKey, int], Any]  # (queue, physical offset of its first record), the entries to write


class Run(NamedTuple):
    """Entries of one queue with consecutive offsets. `timestamps` only with extended queues."""

    queue_offset: int
    begin: int
    end: int
    entries: bytes
    timestamps: bytes


class RangeOutcome(NamedTuple):
    """The result of a range. `part`: the requested part. `begin`, `end`: its borders. `position`: the end of the walk;
    after `end`, it shows that `end` is no border, because a body contains bytes like a record. `entries`: its records
    in queues. `damage`: the damage that stopped the walk."""

    part: tuple[int, int]
    begin: int
    end: int
    position: int
    entries: int
    damage: Failed | None = None


class Gathered(NamedTuple):
    """A range's key hashes for the index, in the log's order."""

    outcome: RangeOutcome
    keys: tuple[bytes, ...]


class Written(NamedTuple):
    """A queue, or the index, staged below `folder`. `entries`: the number of entries of records; `outcome`: of all
    ranges (index only)."""

    key: QueueKey
    folder: str
    entries: int
    outcome: tuple[RangeOutcome, ...] = ()


@dataclass(frozen=True)
class Rebuild:
    """The input of the executors. `bounds` are the log's bounds; the sizes in `config` are the store's."""

    root: Path
    config: StoreConfig
    bounds: Bounds


# ------------------------------------------------------------------------------------------------ gathering


def gather(rebuild: Rebuild, part: tuple[int, int]) -> Iterator[Row]:
    """The entries in queues and index for the records between two borders. An error is a row too, with the index's
    key."""
    try:
        platform.check_writable_file_system(rebuild.root, allow_any=rebuild.config.allow_any_file_system)
        yield from _gather(rebuild, part)
    except StoreError as error:
        yield (INDEX, part[0]), Failed(type(error).__name__, str(error))


def _gather(rebuild: Rebuild, part: tuple[int, int]) -> Iterator[Row]:
    root, config, bounds = rebuild.root, rebuild.config, rebuild.bounds
    reader, holes = LogReader(root, config.mapped_file_size_commit_log_bytes), read_damaged_ranges(root)
    gatherer = kernel.EntryReader(
        delay_levels_ms=config.delay_levels_ms(), with_keys=config.message_index_enable
    )
    position, end = (boundary(reader, holes, bounds, at) for at in part)
    reader.close()
    begin, count, all_keys, damage = position, 0, [], None
    while position < end:
        hole = holes.covering(position)
        if hole is not None:
            position = hole[1]
            continue
        base = reader.base_of(position)
        following = base + reader.file_bytes
        limit = min([end, following, *(at for at, _ in holes.ranges() if at > position)])
        segment = _segment(reader, base)
        status = kernel.FULL
        while status == kernel.FULL:
            status = gatherer.run(segment, base, position, limit)
            position = gatherer.position
            runs, keys = gatherer.take(config.enable_consume_queue_ext)
            for topic, queue_id, queue_offset, first, last, entries, timestamps in runs:
                count += len(entries) // ENTRY_BYTES
                yield (
                    ((topic.decode("ascii"), queue_id), first),
                    Run(queue_offset, first, last, entries, timestamps),
                )
            all_keys.append(keys)
        if status == kernel.BLANK:
            position = following
        elif status == kernel.INVALID:
            error = CorruptRecordError(
                f"a record cannot be entered: {STATUS_NAMES[gatherer.reason]}",
                path=reader.path(base),
                offset=position,
            )
            damage = Failed(type(error).__name__, str(error))
            break
    outcome = RangeOutcome(part, begin, end, position if end < bounds.end else end, count, damage)
    yield (INDEX, begin), Gathered(outcome, tuple(all_keys))


def _segment(reader: LogReader, base: int) -> MappedFile:
    path = reader.path(base)
    if not reader.has(base):
        raise CorruptRecordError("a segment is missing", path=path, offset=base)
    return files.map_file(path, base, reader.file_bytes, writable=False)


# -------------------------------------------------------------------------------------------------- writing


def partition_of(key: tuple[QueueKey, int], partitions: int) -> int:
    """The task that writes a queue. If there are several tasks, the first writes only the index. The answer is the same
    in every process."""
    (topic, queue_id), _ = key
    if (topic, queue_id) == INDEX or partitions == 1:
        return 0
    return 1 + crc32(f"{topic}/{queue_id}".encode()) % (partitions - 1)


def write_all(rebuild: Rebuild, attempt: str, rows: Iterable[Row]) -> Iterator[Written | Failed]:
    """Writes the files of one task: `rows` are grouped by queue, in the log's order."""
    try:
        for key, mine in groupby(rows, key=lambda row: row[0][0]):
            things = (thing for _, thing in mine)
            yield (
                _write_index(rebuild, attempt, things)
                if key == INDEX
                else _write_queue(rebuild, attempt, key, things)
            )
    except StoreError as error:
        yield Failed(type(error).__name__, str(error))
    except _Sent as error:
        yield error.failed


class _Sent(Exception):
    """An error that came with the rows."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.text)
        self.failed = failed


def _control(config: StoreConfig) -> Control:
    """A private control block with a slot for one queue."""
    memory = MappedFile.anonymous(0, Control.size_bytes(1))
    control = Control.create(
        memory,
        commit_log_file_bytes=config.mapped_file_size_commit_log_bytes,
        consume_queue_file_bytes=config.mapped_file_size_consume_queue_bytes,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        max_queues=1,
        **platform.identity(),
    )
    step = control.more_queue_bytes() if control.queue_capacity == 0 else None
    if step is not None:
        control.publish_queue_capacity(step[1])
    return control


def _write_queue(rebuild: Rebuild, attempt: str, key: QueueKey, runs: Iterable[Run]) -> Written:
    folder = rebuild.root / STAGE / attempt
    control = _control(rebuild.config)
    removed = read_removed(rebuild.root).end(key)
    slot = control.add_queue(*key, next=removed, dispatched=removed, minimum=removed)
    queue = ConsumeQueue(folder, *key, slot, rebuild.config, Mode.WRITE, control)
    units = _Units(queue) if rebuild.config.enable_consume_queue_ext else None
    written, count, last_end = [], 0, 0
    given_up = read_given_up(rebuild.root)
    for run in runs:
        # The queue has these offsets already (the first record of an offset counts), or they were removed.
        skip = max(queue.max_offset - run.queue_offset, 0)
        if skip * ENTRY_BYTES >= len(run.entries):
            continue
        at = run.queue_offset + skip
        if at > queue.max_offset or not queue.has_files():
            _fill_gap(queue, at, run.begin - last_end, rebuild.root, given_up)
        data = memoryview(run.entries if units is None else units.enter(run, skip))
        data = data[skip * ENTRY_BYTES :]
        while data:
            position = at * ENTRY_BYTES
            file = queue.prepare(position)
            part = data[: file.end - position]
            queue.allocate(position + len(part) - ENTRY_BYTES)
            file.write(position - file.base, part)
            written.append((file.base, position - file.base, len(part), crc32c(bytes(part))))
            at, data = at + len(part) // ENTRY_BYTES, data[len(part) :]
            control.set_queue_dispatched(slot, at)
        last_end = run.end
        count += len(run.entries) // ENTRY_BYTES
    with files.translated(queue.files.directory):
        control.set_queue_flushed(slot, queue.min_offset)
        queue.flush()
    _read_again(queue, written)
    return Written(key, str(folder), count)


def _fill_gap(queue: ConsumeQueue, at: int, room: int, root: Path, given_up: GivenUp) -> None:
    """Hole entries for records lost in damage: the log had room for them, or recovery lists them as given up."""
    missing = at - queue.max_offset
    listed = given_up.explains((queue.topic, queue.queue_id), queue.max_offset, at)
    if queue.has_files() and not listed and missing * RECORD_SIZE_MIN > room:
        raise CorruptRecordError(
            f"queue offset {at} of {queue.topic}/{queue.queue_id}, where {queue.max_offset} is next, is "
            "impossible: the log has no room "
            "for the records between",
            path=root,
        )
    queue.fill_gap(at)


class _Units:
    """Writes a queue's extended units, one after the other."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue, self._position = queue, 0

    def enter(self, run: Run, skip: int) -> bytes:
        """The run's entries, with the addresses of their units in place of tags codes."""
        changed = bytearray(run.entries)
        for number in range(skip, len(run.entries) // ENTRY_BYTES):
            at, size, tags_code = QUEUE_ENTRY.unpack_from(run.entries, number * ENTRY_BYTES)
            (timestamp,) = TIMESTAMP.unpack_from(run.timestamps, number * TIMESTAMP.size)
            address = queue_ext.address_of(self._put(tags_code, timestamp))
            QUEUE_ENTRY.pack_into(changed, number * ENTRY_BYTES, at, size, address)
        return bytes(changed)

    def _put(self, tags_code: int, timestamp: int) -> int:
        """The place of the written unit."""
        while True:
            file, position, _ = self._queue.prepare_ext(self._position)
            unit = bytearray(min(file.end - position, UNIT_ROOM))
            status, length = queue_ext.put(unit, 0, tags_code, timestamp) if unit else ("no room", 0)
            file.write(position - file.base, unit)  # the unit, or the mark that ends the file
            if status == "ok":
                self._position = position + length
                return position
            self._position = file.end


def _read_again(queue: ConsumeQueue, written: list[tuple[int, int, int, int]]) -> None:
    """Checks that the disk has the bytes that were written."""
    for base, at, length, checksum in written:
        path = queue.files.path(base)
        with files.opened(path) as fd:
            if crc32c(files.pread_full(fd, at, length, path)) != checksum:
                raise StoreIOError(
                    "staged entries differ from what was written; run the job again", path=path, offset=at
                )


def _write_index(rebuild: Rebuild, attempt: str, parts: Iterable[Gathered | Failed]) -> Written:
    folder, config = rebuild.root / STAGE / attempt, rebuild.config
    control = _control(config)
    index = IndexFiles(folder, config, Mode.WRITE, control)
    outcome, entered = [], 0
    for part in parts:
        if isinstance(part, Failed):
            raise _Sent(part)
        outcome.append(part.outcome)
        for keys in part.keys:
            _enter(index, control, keys)
            entered += len(keys) // kernel.KEY_BYTES
    with files.translated(index.directory):
        index.flush()
    index.close()
    return Written(INDEX, str(folder), entered, tuple(outcome))


def _enter(index: IndexFiles, control: Control, keys: bytes) -> None:
    at, count = 0, len(keys) // kernel.KEY_BYTES
    while at < count:
        newest = index.newest() or index.add()
        number = newest.header.next_entry
        needed = HEADER_BYTES + SLOT_BYTES * newest.slots + INDEX_ENTRY_BYTES * (number + count - at)
        needed = min(needed, newest.file.length)
        if needed > control.index_allocated:
            index.allocate(newest, needed)
        at = kernel.put_keys(newest.file, newest.slots, newest.capacity, keys, at)
