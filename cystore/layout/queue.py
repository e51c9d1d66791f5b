"""Consume queues: an entry, and a unit of an extended queue."""

from __future__ import annotations

from cystore.layout.shapes import Constants, DiskStruct, Field

QUEUE_ENTRY_DISK = DiskStruct(
    "queue_entry_disk",
    "Consume queue entry",
    (
        Field("physical_offset", 0, 8, "of the record"),
        Field("size", 8, 4, "of the record; 0x7FFFFFFF in pre-blank and hole entries"),
        Field("tags_code", 12, 8, "hash of the tags, due time of a delayed message, or ext address"),
    ),
)

EXT_UNIT = DiskStruct(
    "ext_unit",
    "Unit of an extended consume queue; the bitmap follows at 20",
    (
        Field("size", 0, 2, "of the whole unit; -1 where the units of a file end"),
        Field("tags_code", 2, 8, "hash of the tags"),
        Field("store_timestamp", 10, 8, "of the record, ms"),
        Field("bitmap_bytes", 18, 2, "length of the bitmap"),
    ),
)

CONSTANTS: Constants = {
    "QUEUE_ENTRY_BYTES": (20, "one message in a consume queue"),
    "EXT_UNIT_FIXED_BYTES": (20, "of an extended unit, but for its bitmap"),
    "EXT_UNIT_BYTES_MAX": (32767, "the length is a signed short"),
    "HOLE_ENTRY_SIZE": (0x7FFFFFFF, "size field of pre-blank and hole entries"),
}
