"""One record of the commit log: RocketMQ's, cystore's, and the blank that fills the end of a file."""

import ipaddress
import re
import struct
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property

import crc32c

from tests.oracle import java, properties

ROCKETMQ_MAGIC = 0xDAA320A7
CYSTORE_MAGIC = 0x43595331
BLANK_MAGIC = 0xCBD43194

BORN_HOST_V6 = 16
STORE_HOST_V6 = 32
TRANSACTION_MASK = 12
PLAIN, PREPARED, COMMIT, ROLLBACK = 0, 4, 8, 12

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}\Z", re.ASCII)
DELAY_LEVELS_MS = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, *(60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600, 7200)
)


class NotValid(Exception):
    """The bytes are no valid record; says why."""


class _Cursor:
    """Reads forward between two positions and refuses to leave them."""

    def __init__(self, data: bytes, position: int, end: int):
        self.data, self.position, self.end = data, position, end

    def take(self, count: int, what: str) -> bytes:
        if count < 0:
            raise NotValid(f"{what}: length {count}")
        if self.position + count > self.end:
            raise NotValid(f"{what}: needs {count} bytes at {self.position}, end is {self.end}")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, code: str, what: str) -> int:
        return struct.unpack(">" + code, self.take(struct.calcsize(">" + code), what))[0]


@dataclass(frozen=True)
class Blank:
    """The filler from the last record of a file to its end."""

    size: int


@dataclass(frozen=True)
class Record:
    topic: str
    body: bytes = b""
    magic: int = ROCKETMQ_MAGIC
    checksum: int = 0
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_timestamp_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    raw_properties: bytes = b""
    raw: bytes = field(default=b"", compare=False, repr=False)

    @property
    def size(self) -> int:
        return len(self.raw)

    @property
    def end(self) -> int:
        return self.physical_offset + self.size

    @cached_property
    def properties(self) -> dict[str, str]:
        return properties.parse(self.raw_properties)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in self.properties.get("KEYS", "").split(" ") if key)

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def transaction(self) -> int:
        return self.sys_flag & TRANSACTION_MASK

    @property
    def in_queue(self) -> bool:
        """Whether it gets a consume queue entry (and so a queue offset of its own)."""
        return self.transaction in (PLAIN, COMMIT)

    @cached_property
    def index_keys(self) -> tuple[str, ...]:
        """The keys that the index holds for it, in the order they are entered."""
        if self.transaction == ROLLBACK:
            return ()
        unique = self.properties.get("UNIQ_KEY")
        return ((unique,) if unique is not None else ()) + self.keys

    @property
    def delay_level(self) -> int:
        """`DELAY` as Java's `Integer.parseInt` reads it; 0 for what it refuses."""
        level = self.properties.get("DELAY", "")
        return int(level) if re.fullmatch(r"[+-]?[0-9]+", level) and -(2**31) <= int(level) < 2**31 else 0

    @property
    def tags_code(self) -> int:
        """The tags code of its consume queue entry: the hash of the tags, or the due time of a delayed message."""
        if self.topic == SCHEDULE_TOPIC and (level := self.delay_level) > 0:
            return self.store_timestamp_ms + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
        return java.string_hash(self.tags) if self.tags else 0


def host_text(host: bytes) -> str:
    """`1.2.3.4:80` or `[2001:db8::1]:80`."""
    address, port = ipaddress.ip_address(host[:-4]), int.from_bytes(host[-4:], "big", signed=True)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def host_bytes(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")).packed + int(port).to_bytes(4, "big")


def checksum(raw: bytes, magic: int, body: bytes) -> int:
    """RocketMQ covers the body only; cystore the whole record but for the four bytes of the checksum
    itself."""
    if magic == ROCKETMQ_MAGIC:
        return zlib.crc32(body) & 0x7FFFFFFF
    return crc32c.crc32c(raw[12:], crc32c.crc32c(raw[:8]))


def parse(data: bytes, position: int = 0, end: int | None = None) -> Record | Blank:
    """The record or blank at `position`; its bytes must end at or before `end`. Raises NotValid."""
    end = len(data) if end is None else end
    at = _Cursor(data, position, end)
    size, magic = at.number("i", "total size"), at.number("I", "magic")
    if magic == BLANK_MAGIC:
        if size != end - position:
            raise NotValid(f"blank of {size} bytes where {end - position} are left")
        return Blank(size)
    if magic not in (ROCKETMQ_MAGIC, CYSTORE_MAGIC):
        raise NotValid(f"magic {magic:#x}")
    if size < 8 or position + size > end:
        raise NotValid(f"total size {size} at {position}, end is {end}")
    at.end = position + size
    fields: dict = {"magic": magic, "checksum": at.number("I", "checksum")}
    for name, code in (
        ("queue_id", "i"),
        ("flag", "i"),
        ("queue_offset", "q"),
        ("physical_offset", "q"),
        ("sys_flag", "i"),
        ("born_timestamp_ms", "q"),
    ):
        fields[name] = at.number(code, name)
    fields["born_host"] = at.take(20 if fields["sys_flag"] & BORN_HOST_V6 else 8, "born host")
    fields["store_timestamp_ms"] = at.number("q", "store timestamp")
    fields["store_host"] = at.take(20 if fields["sys_flag"] & STORE_HOST_V6 else 8, "store host")
    fields["reconsume_times"] = at.number("i", "reconsume times")
    fields["prepared_transaction_offset"] = at.number("q", "prepared transaction offset")
    fields["body"] = at.take(at.number("i", "body length"), "body")
    topic = at.take(at.number("b", "topic length"), "topic")
    fields["raw_properties"] = at.take(at.number("h", "properties length"), "properties")
    if at.position != at.end:
        raise NotValid(f"fields end at {at.position}, the record at {at.end}")
    raw = data[position : position + size]
    # RocketMQ looks at the checksum of a body only where there is one.
    covered = magic == CYSTORE_MAGIC or fields["body"]
    if covered and fields["checksum"] != checksum(raw, magic, fields["body"]):
        raise NotValid("checksum")
    if not TOPIC.match(java.text(topic)):
        raise NotValid(f"topic {topic!r}")
    if fields["queue_id"] < 0:
        raise NotValid(f"queue id {fields['queue_id']}")
    return Record(topic=topic.decode("ascii"), raw=raw, **fields)


def encode(record: Record) -> Record:
    """The same record with its bytes and its checksum."""
    topic = record.topic.encode()
    size = 91 + len(record.born_host) + len(record.store_host) - 16
    size += len(record.body) + len(topic) + len(record.raw_properties)
    head = struct.pack(
        ">iiqqiq",
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp_ms,
    )
    tail = b"".join(
        (
            record.born_host,
            struct.pack(">q", record.store_timestamp_ms),
            record.store_host,
            struct.pack(">iq", record.reconsume_times, record.prepared_transaction_offset),
            struct.pack(">i", len(record.body)) + record.body,
            struct.pack(">b", len(topic)) + topic,
            struct.pack(">h", len(record.raw_properties)) + record.raw_properties,
        )
    )
    start = struct.pack(">iI", size, record.magic)
    total = checksum(start + bytes(4) + head + tail, record.magic, record.body)
    raw = start + struct.pack(">I", total) + head + tail
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes for a record of {size}")
    return replace(record, checksum=total, raw=raw)


def encode_blank(room: int) -> bytes:
    """The eight bytes of the blank that closes a file with `room` bytes left."""
    return struct.pack(">iI", room, BLANK_MAGIC)
