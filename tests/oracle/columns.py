"""A log's records as rows, read one by one: the slow answer to the column kernel's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.oracle.log import Log
from tests.oracle.record import Blank, NotValid, Record

INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Wanted:
    """As the kernel's filter: whatever is given must hold."""

    in_queue: bool = False
    physical: tuple[int, int] = (-(2**63), INT64_MAX)
    offsets: tuple[int, int] = (-(2**63), INT64_MAX)
    times_ms: tuple[int, int] = (-(2**63), INT64_MAX)
    queue_ids: tuple[int, ...] = ()
    tags: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()
    rules: tuple[tuple[bytes, int, int, int, int, int], ...] = ()

    def takes(self, record: Record) -> bool:
        pairs = raw_pairs(record.raw_properties)
        keys = [key for key in pairs.get(b"KEYS", b"").split(b" ") if key]
        return (
            (record.in_queue or not self.in_queue)
            and self.physical[0] <= record.physical_offset < self.physical[1]
            and self.offsets[0] <= record.queue_offset < self.offsets[1]
            and self.times_ms[0] <= record.store_timestamp_ms < self.times_ms[1]
            and (not self.queue_ids or record.queue_id in self.queue_ids)
            and (not self.tags or pairs.get(b"TAGS") in self.tags)
            and (not self.keys or any(key in self.keys for key in [*keys, pairs.get(b"UNIQ_KEY")]))
            and (not self.rules or any(_fits(rule, record) for rule in self.rules))
        )


def _fits(rule: tuple[bytes, int, int, int, int, int], record: Record) -> bool:
    topic, queue_id, first, behind, earliest, latest = rule
    return (
        topic == record.topic.encode()
        and queue_id in (-1, record.queue_id)
        and first <= record.queue_offset < behind
        and earliest <= record.store_timestamp_ms < latest
    )


def raw_pairs(data: bytes) -> dict[bytes, bytes]:
    found = {}
    for pair in data.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if separator and name and value:
            found[name] = value
    return found


def _microseconds(ms: int) -> int:
    return ms * 1000 if -(INT64_MAX // 1000) <= ms <= INT64_MAX // 1000 else INT64_MAX if ms > 0 else -(2**63)


def row(record: Record) -> dict[str, Any]:
    return {
        "key": record.keys[0] if record.keys else None,
        "value": record.body,
        "topic": record.topic,
        "partition": record.queue_id,
        "offset": record.queue_offset,
        "timestamp": _microseconds(record.store_timestamp_ms),
        "physical_offset": record.physical_offset,
        "tags": record.tags,
        "keys": list(record.keys),
        "properties": list(record.properties.items()),
        "born_timestamp": _microseconds(record.born_timestamp_ms),
        "sys_flag": record.sys_flag,
    }


def rows_of_file(log: Log, base: int, wanted: Wanted) -> tuple[list[dict[str, Any]], int, bool]:
    """The wanted rows of one file up to the first place that is no record; that place, and whether it is a blank."""
    at, rows = base, []
    while at < base + log.file_size:
        try:
            found = log.item(at)
        except NotValid:
            return rows, at, False
        if isinstance(found, Blank):
            return rows, at, True
        if wanted.takes(found):
            rows.append(row(found))
        at += found.size
    return rows, at, False
