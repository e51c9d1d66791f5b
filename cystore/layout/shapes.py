"""The parts of declarations: fields of disk structs, parts of a record, fields of shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Constants = dict[str, tuple[int, str]]  # name: value, what it is

CACHE_LINE_BYTES = 64
MUTEX_BYTES = 64
# The largest pthread_mutex_t of the supported C libraries: of glibc on ARM64. It shares its cache line with words.
PACKED_MUTEX_BYTES = 48
TYPE_BYTES = {
    "int64_t": 8,
    "uint64_t": 8,
    "int32_t": 4,
    "uint32_t": 4,
    "char": 1,
    "uint8_t": 1,
    "packed_mutex": PACKED_MUTEX_BYTES,
}
WORD_BYTES = 8  # no type needs a stricter alignment


class Field(NamedTuple):
    """One field of a disk struct: `at` bytes from the start, `width` bytes wide; signed unless `unsigned`."""

    name: str
    at: int
    width: int
    doc: str
    unsigned: bool = False


class DiskStruct(NamedTuple):
    name: str
    doc: str
    fields: tuple[Field, ...]


class Part(NamedTuple):
    """One part of a record after its fixed prefix. It has `width` bytes; or, with `v6_flag`, the length of a host; or
    the length that is stored before it in `length_width` bytes."""

    name: str
    doc: str
    width: int = 0
    length_width: int = 0
    v6_flag: str = ""


@dataclass(frozen=True)
class Shared:
    """One field of the control block. `type` is a C type; `count` > 1 makes an array. `owner`: the lock for writes."""

    name: str
    type: str
    owner: str
    doc: str
    count: int = 1


def line_offsets(
    lines: tuple[tuple[Shared, ...], ...], start: int = 0
) -> tuple[list[tuple[Shared, int]], int]:
    """The offset of each field, if every line starts on a cache line; and the end, rounded up to a cache line."""
    placed, at = [], start
    for line in lines:
        at = -(-at // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        for field in line:
            width = TYPE_BYTES[field.type]
            alignment = min(width, WORD_BYTES)
            at = -(-at // alignment) * alignment
            placed.append((field, at))
            at += width * field.count
    return placed, -(-at // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
