"""Consume queues: their entries, the extended units beside them, and how a queue follows from the log."""

import struct
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.log import read_files
from tests.oracle.record import Record

ENTRY_BYTES = 20
HOLE_SIZE = 0x7FFFFFFF
EXT_MAX_ADDRESS = -2147483649
EXT_FIXED_BYTES = 20


@dataclass(frozen=True)
class Entry:
    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_hole(self) -> bool:
        """Pre-blank entry or hole: it stands for a queue offset without a message."""
        return (self.physical_offset, self.size, self.tags_code) == (0, HOLE_SIZE, 0)

    @property
    def is_written(self) -> bool:
        return self.physical_offset >= 0 and self.size > 0


HOLE = Entry(0, HOLE_SIZE, 0)


@dataclass(frozen=True)
class ExtUnit:
    size: int
    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes


@dataclass(frozen=True)
class Queue:
    """A queue's entries by queue offset; `minimum` is its first message, `maximum` the next queue offset."""

    entries: dict[int, Entry]
    minimum: int
    maximum: int


def parse_entry(data: bytes, position: int = 0) -> Entry:
    return Entry(*struct.unpack_from(">qiq", data, position))


def encode_entry(entry: Entry) -> bytes:
    return struct.pack(">qiq", entry.physical_offset, entry.size, entry.tags_code)


def entry_of(record: Record) -> Entry:
    return Entry(record.physical_offset, record.size, record.tags_code)


def read_entries(files: dict[int, bytes]) -> dict[int, Entry]:
    """Entries by queue offset, from the first file up to the first place that was never written."""
    found: dict[int, Entry] = {}
    expected = min(files, default=0)
    for base, data in sorted(files.items()):
        if base != expected:
            break
        for at in range(0, len(data) - len(data) % ENTRY_BYTES, ENTRY_BYTES):
            entry = parse_entry(data, at)
            if not entry.is_written:
                return found
            found[(base + at) // ENTRY_BYTES] = entry
        expected = base + len(data)
    return found


def queue_of(entries: dict[int, Entry], log_minimum: int, log_end: int) -> Queue:
    """Cut what points at or past the log's end; the minimum is the first message at or past the log's
    minimum."""
    kept: dict[int, Entry] = {}
    for offset, entry in sorted(entries.items()):
        if not entry.is_hole and entry.physical_offset >= log_end:
            break
        kept[offset] = entry
    maximum = max(kept) + 1 if kept else min(entries, default=0)
    live = (o for o, entry in kept.items() if not entry.is_hole and entry.physical_offset >= log_minimum)
    return Queue(kept, min(live, default=maximum), maximum)


def entries_of(records: list[Record]) -> dict[tuple[str, int], dict[int, Entry]]:
    """Every queue as its records make it; queue offsets missing between them are holes."""
    queues: dict[tuple[str, int], dict[int, Entry]] = {}
    for record in records:
        if record.in_queue:
            entries = queues.setdefault((record.topic, record.queue_id), {})
            for missing in range(max(entries) + 1 if entries else record.queue_offset, record.queue_offset):
                entries[missing] = HOLE
            entries.setdefault(record.queue_offset, entry_of(record))
    return queues


def queue_files(entries: dict[int, Entry], file_size: int) -> dict[int, bytes]:
    """The files of one queue: from the file its first entry falls into, that one filled up with pre-blank
    entries."""
    files: dict[int, bytearray] = {}
    per_file = file_size // ENTRY_BYTES
    first = min(entries)
    for offset in range(first - first % per_file, max(entries) + 1):
        base = offset // per_file * file_size
        at = offset * ENTRY_BYTES - base
        data = files.setdefault(base, bytearray(file_size))
        data[at : at + ENTRY_BYTES] = encode_entry(entries.get(offset, HOLE))
    return {base: bytes(data) for base, data in files.items()}


def read_ext(files: dict[int, bytes], address: int) -> ExtUnit | None:
    """The unit that a tags code of an ext-enabled queue points to; None for a plain tags code."""
    if address > EXT_MAX_ADDRESS:
        return None
    offset = address + 2**63
    file_size = len(next(iter(files.values())))
    base = offset - offset % file_size
    return parse_ext(files[base], offset - base)


def parse_ext(data: bytes, position: int = 0) -> ExtUnit:
    size, tags_code, store_timestamp_ms, bitmap_bytes = struct.unpack_from(">hqqh", data, position)
    begin = position + EXT_FIXED_BYTES
    if bitmap_bytes < 0 or size != EXT_FIXED_BYTES + bitmap_bytes or begin + bitmap_bytes > len(data):
        raise ValueError(f"ext unit at {position}: size {size}, bitmap {bitmap_bytes}, {len(data)} bytes")
    return ExtUnit(size, tags_code, store_timestamp_ms, data[begin : begin + bitmap_bytes])


def encode_ext(tags_code: int, store_timestamp_ms: int, bitmap: bytes) -> bytes:
    head = struct.pack(">hqqh", EXT_FIXED_BYTES + len(bitmap), tags_code, store_timestamp_ms, len(bitmap))
    return head + bitmap


def read_queue_directories(directory: Path) -> dict[tuple[str, int], dict[int, bytes]]:
    """`consumequeue` or `consumequeue_ext`: the files of each (topic, queue id)."""
    found = {}
    for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
        for queue in sorted(topic.iterdir(), key=lambda p: int(p.name)):
            found[topic.name, int(queue.name)] = read_files(queue)
    return found


def offset_by_time(queue: Queue, store_timestamps: dict[int, int], timestamp_ms: int) -> int:
    """cystore's rule, by looking at every message from the queue's minimum on.

    `store_timestamps` is by physical offset. The lowest offset with exactly that timestamp; else the nearer
    of the last earlier and the first later message, the earlier one on a tie; a queue without messages gives
    its maximum.
    """
    times = [
        (offset, store_timestamps[entry.physical_offset])
        for offset, entry in sorted(queue.entries.items())
        if offset >= queue.minimum and not entry.is_hole
    ]
    exact = [offset for offset, time in times if time == timestamp_ms]
    if exact:
        return exact[0]
    earlier = [(offset, time) for offset, time in times if time < timestamp_ms]
    later = [(offset, time) for offset, time in times if time > timestamp_ms]
    if earlier and later:
        nearer_later = later[0][1] - timestamp_ms < timestamp_ms - earlier[-1][1]
        return later[0][0] if nearer_later else earlier[-1][0]
    if earlier:
        return earlier[-1][0]
    return later[0][0] if later else queue.minimum


def bound_by_time(queue: Queue, store_timestamps: dict[int, int], timestamp_ms: int, boundary: str) -> int:
    """RocketMQ 5's bounds, by looking at every message. "lower": the first message at or after the time, else the
    queue's end. "upper": the last one at or before it, else the queue's minimum."""
    times = [
        (offset, store_timestamps[entry.physical_offset])
        for offset, entry in sorted(queue.entries.items())
        if offset >= queue.minimum and not entry.is_hole
    ]
    if boundary == "lower":
        return min((offset for offset, time in times if time >= timestamp_ms), default=queue.maximum)
    return max((offset for offset, time in times if time <= timestamp_ms), default=queue.minimum)
