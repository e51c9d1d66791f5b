"""Sound records and logs for targets to start from, and checksums put right again."""

from __future__ import annotations

import zlib
from dataclasses import replace

import crc32c

from tests.oracle.log import Log, lay_out
from tests.oracle.record import (
    BORN_HOST_V6,
    COMMIT,
    CYSTORE_MAGIC,
    PREPARED,
    ROCKETMQ_MAGIC,
    SCHEDULE_TOPIC,
    Record,
    encode,
    encode_blank,
)

NOW = 1_700_000_000_000
PHYSICAL_OFFSET_AT = 28


def record(topic: str = "T", body: bytes = b"body", properties: bytes = b"", **more: object) -> Record:
    """A record as a producer writes it."""
    fields = {"magic": CYSTORE_MAGIC, "store_timestamp_ms": NOW, "born_timestamp_ms": NOW, **more}
    return Record(topic=topic, body=body, raw_properties=properties, **fields)


def samples() -> list[Record]:
    """Each kind of record: both formats, every field used, hosts of both lengths, transactions, delay."""
    whole = b"KEYS\x01a b\x02TAGS\x01red\x02UNIQ_KEY\x01u1\x02x\x01y"
    return [
        record(),
        record("T", b"", b"", magic=ROCKETMQ_MAGIC),
        record("T", b"x" * 40, whole, magic=ROCKETMQ_MAGIC, queue_offset=1, flag=7),
        record("%RETRY%g", b"y", whole, born_host=bytes(20), sys_flag=BORN_HOST_V6, reconsume_times=3),
        record(SCHEDULE_TOPIC, b"later", b"DELAY\x013\x02TAGS\x01t", queue_id=2),
        record("T", b"half", whole, sys_flag=PREPARED, prepared_transaction_offset=5),
        record("T", b"done", whole, sys_flag=COMMIT, queue_offset=1),
    ]


def encoded() -> list[bytes]:
    """Their bytes, and a blank."""
    return [encode(one).raw for one in samples()] + [encode_blank(40)]


def log_of(file_bytes: int) -> Log:
    """They in a row, each in its queue's next place."""
    counts: dict[tuple[str, int], int] = {}
    rows = []
    for at, one in enumerate(samples() * 2):
        queue = one.topic, one.queue_id
        place = counts.get(queue, 0) if one.in_queue else 0
        counts[queue] = counts.get(queue, 0) + one.in_queue
        rows.append(replace(one, queue_offset=place, store_timestamp_ms=NOW + at))
    return lay_out(rows, file_bytes)[0]


def repaired(data: bytes, *, base: int | None = None) -> bytes:
    """The same bytes with the checksum of each record in the row that its lengths allow, and (from `base` on) its
    place."""
    out, at = bytearray(data), 0
    while at + 60 <= len(out):
        size, magic = int.from_bytes(out[at : at + 4], "big"), int.from_bytes(out[at + 4 : at + 8], "big")
        if not 60 <= size <= len(out) - at:
            break
        if base is not None:
            out[at + PHYSICAL_OFFSET_AT : at + PHYSICAL_OFFSET_AT + 8] = (base + at).to_bytes(8, "big")
        if magic == CYSTORE_MAGIC:
            value = crc32c.crc32c(bytes(out[at + 12 : at + size]), crc32c.crc32c(bytes(out[at : at + 8])))
        else:
            flags = int.from_bytes(out[at + 36 : at + 40], "big")
            begin = at + 88 + 12 * bool(flags & 16) + 12 * bool(flags & 32)
            length = int.from_bytes(out[begin - 4 : begin], "big")
            value = zlib.crc32(bytes(out[begin : min(begin + length, at + size)])) & 0x7FFFFFFF
        out[at + 8 : at + 12] = value.to_bytes(4, "big")
        at += size
    return bytes(out)
