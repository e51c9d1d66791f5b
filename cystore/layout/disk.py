"""All disk structs by their names, and their codecs."""

from __future__ import annotations

import struct
from typing import NamedTuple

from cystore.layout import index, ledger, queue, record, store_files, sys_flags

DISK_STRUCTS = (
    record.RECORD,
    queue.QUEUE_ENTRY_DISK,
    queue.EXT_UNIT,
    index.HEADER,
    index.ENTRY,
    store_files.CHECKPOINT,
    store_files.MANIFEST_SLOT,
    store_files.QUEUE_TABLE_HEADER,
    store_files.QUEUE_TABLE_ROW,
    store_files.TIMER_BLOCK,
)
_ALL = (*DISK_STRUCTS, *ledger.FOREIGN_STRUCTS)
_CODES = {(1, False): "b", (2, False): "h", (4, False): "i", (8, False): "q", (4, True): "I", (8, True): "Q"}


def codec(name: str) -> struct.Struct:
    """The codec of all fields of a disk struct without gaps between its fields."""
    fields = next(disk.fields for disk in _ALL if disk.name == name)
    return struct.Struct(">" + "".join(_CODES[field.width, field.unsigned] for field in fields))


class Place(NamedTuple):
    """The place of one field of a disk struct, and its codec."""

    at: int
    form: struct.Struct

    def read(self, data: bytes | bytearray | memoryview, begin: int = 0) -> int:
        """The field's value in the struct that begins at `begin`."""
        (value,) = self.form.unpack_from(data, begin + self.at)
        return int(value)


def field_of(struct_name: str, name: str) -> Place:
    """The place of one field of a disk struct."""
    (field,) = (f for disk in _ALL if disk.name == struct_name for f in disk.fields if f.name == name)
    return Place(field.at, struct.Struct(">" + _CODES[field.width, field.unsigned]))


QUEUE_ENTRY, INDEX_HEADER, INDEX_ENTRY = (
    codec("queue_entry_disk"),
    codec("index_header"),
    codec("index_entry"),
)
TOTAL_SIZE, MAGIC = field_of("record", "total_size"), field_of("record", "magic")  # of a record or a blank


def record_store_timestamp(head: bytes) -> int:
    """The store timestamp of a record, from its first RECORD_SIZE_MIN bytes."""
    v6 = field_of("record", "sys_flag").read(head) & sys_flags.CONSTANTS["SYS_FLAG_BORN_HOST_V6"][0]
    (width,) = (part.width for part in record.RECORD_PARTS if part.name == "store_timestamp")
    begin = record.PREFIX_BYTES + (record.HOST_V6_BYTES if v6 else record.HOST_V4_BYTES)
    return int.from_bytes(head[begin : begin + width], "big", signed=True)
