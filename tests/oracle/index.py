"""Index files: header, hash slots, entries chained newest first; and what a query must find."""

import struct
from dataclasses import dataclass

from tests.oracle.java import index_hash, truncated_division
from tests.oracle.record import Record

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
FOREVER_MS = 2**63 - 1


@dataclass(frozen=True)
class Header:
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int


@dataclass(frozen=True)
class IndexEntry:
    hash: int
    physical_offset: int
    seconds: int
    previous: int


class IndexFile:
    """One index file as bytes that can be read and added to."""

    def __init__(self, slots: int, capacity: int, data: bytes | None = None):
        self.slots, self.capacity = slots, capacity
        self.data = bytearray(file_bytes(slots, capacity) if data is None else data)
        if len(self.data) != file_bytes(slots, capacity):
            raise ValueError(f"index file of {len(self.data)} bytes, not {file_bytes(slots, capacity)}")

    @property
    def header(self) -> Header:
        *head, next_entry = struct.unpack_from(">qqqqii", self.data)
        return Header(*head, min(max(next_entry, 1), self.capacity))

    @header.setter
    def header(self, value: Header) -> None:
        fields = (value.begin_ms, value.end_ms, value.begin_offset, value.end_offset)
        struct.pack_into(">qqqqii", self.data, 0, *fields, value.used_slots, value.next_entry)

    def continue_from(self, previous: "IndexFile") -> None:
        """A new file takes the end of the one before it as its begin and end until it has an entry."""
        end = previous.header
        self.header = Header(end.end_ms, end.end_ms, end.end_offset, end.end_offset, 0, 1)

    def slot(self, number: int) -> int:
        return struct.unpack_from(">i", self.data, HEADER_BYTES + SLOT_BYTES * number)[0]

    def entry(self, number: int) -> IndexEntry:
        return IndexEntry(*struct.unpack_from(">iqii", self.data, self._entry_at(number)))

    def _entry_at(self, number: int) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * number

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self.capacity

    def put(self, key: str, physical_offset: int, store_timestamp_ms: int) -> None:
        """`key` is `topic#key`."""
        head, hash_ = self.header, index_hash(key)
        number, slot = head.next_entry, hash_ % self.slots
        if number >= self.capacity:
            raise ValueError(f"index file is full at {number} entries")
        previous = self.slot(slot)
        if not 0 < previous < number:
            previous = 0
        seconds = truncated_division(store_timestamp_ms - head.begin_ms, 1000) if head.begin_ms > 0 else 0
        seconds = min(max(seconds, 0), 2**31 - 1)
        struct.pack_into(
            ">iqii", self.data, self._entry_at(number), hash_, physical_offset, seconds, previous
        )
        struct.pack_into(">i", self.data, HEADER_BYTES + SLOT_BYTES * slot, number)
        first = number == 1
        self.header = Header(
            store_timestamp_ms if first else head.begin_ms,
            store_timestamp_ms,
            physical_offset if first else head.begin_offset,
            physical_offset,
            head.used_slots + (previous == 0),
            number + 1,
        )

    def chain(self, key: str) -> list[IndexEntry]:
        """The entries in the chain of `key` that have its hash, newest first; a damaged chain ends where it
        points up."""
        wanted, next_entry = index_hash(key), self.header.next_entry
        number, found = self.slot(wanted % self.slots), []
        while 0 < number < next_entry:
            entry = self.entry(number)
            if entry.hash == wanted:
                found.append(entry)
            if entry.previous >= number:
                break
            number = entry.previous
        return found


def file_bytes(slots: int, capacity: int) -> int:
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * capacity


def build(
    files: list[IndexFile], records: list[Record], slots: int, capacity: int, *, repeat_last: bool
) -> None:
    """Enter the records that the files do not hold yet. RocketMQ enters the last one of them again
    (`repeat_last`)."""
    for record in records:
        held = files[-1].header.end_offset if files and files[-1].header.next_entry > 1 else -1
        if record.physical_offset < held or (record.physical_offset == held and not repeat_last):
            continue
        for key in record.index_keys:
            if not files or files[-1].is_full:
                files.append(IndexFile(slots, capacity))
                if len(files) > 1:
                    files[-1].continue_from(files[-2])
            files[-1].put(f"{record.topic}#{key}", record.physical_offset, record.store_timestamp_ms)


def rocketmq_query(files: list[IndexFile], topic: str, key: str, limit: int = 64) -> list[int]:
    """The physical offsets of the newest `limit` entries with the key's hash: lowest first, repeats and
    strangers too."""
    newest_first = [e.physical_offset for file in reversed(files) for e in file.chain(f"{topic}#{key}")]
    return sorted(newest_first[:limit])


def query(
    records: list[Record],
    topic: str,
    key: str,
    max_count: int = 32,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
) -> list[Record]:
    """What a query answers: every record that holds the key, found by looking at all of them, newest
    first."""
    found = [
        r
        for r in records
        if r.topic == topic and key in r.index_keys and begin_ms <= r.store_timestamp_ms <= end_ms
    ]
    return sorted(found, key=lambda r: -r.physical_offset)[:max_count]
