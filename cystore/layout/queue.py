"""Queues: an entry of a consume queue, a unit of an extended one, and a queue's slot in the control block."""

from __future__ import annotations

from cystore.layout.shapes import Constants, DiskStruct, Field, Shared, line_offsets

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

QUEUE_SLOT_LINES: tuple[tuple[Shared, ...], ...] = (
    (
        Shared("next", "int64_t", "append", "next queue offset, of what is published"),
        Shared("claimed", "int64_t", "append", "next queue offset, of what is being written too"),
        Shared("hash_next", "uint32_t", "append", "slot + 1 of the next queue in this bucket, 0 = none"),
        Shared("hash", "uint32_t", "append", "of topic and queue id"),
        Shared("queue_id", "int32_t", "append", "constant once published"),
        Shared("topic_bytes", "uint32_t", "append", "length of topic"),
        Shared(
            "sleepers", "uint32_t", "atomic", "futex word: 1 while a thread may sleep until an append to it"
        ),
        Shared("put_bytes", "uint64_t", "append", "record bytes appended to it since the first attach"),
    ),
    (Shared("topic", "char", "append", "UTF-8, constant once published", 128),),
    (
        Shared(
            "dispatched", "int64_t", "dispatch", "queue offset behind the last entry in the consume queue"
        ),
        Shared("minimum", "int64_t", "dispatch", "lowest queue offset that can be read"),
        Shared("flushed", "int64_t", "flush", "queue offset behind the last entry known synced"),
        Shared(
            "allocated",
            "int64_t",
            "dispatch",
            "consume queue position (bytes) up to which space is allocated",
        ),
        Shared("last_physical_end", "int64_t", "dispatch", "end of the last dispatched record of this queue"),
        Shared("last_store_timestamp", "int64_t", "dispatch", "its store timestamp, ms"),
        Shared(
            "delivered",
            "int64_t",
            "deliver",
            "delayed messages of this queue that were delivered end before it",
        ),
        Shared(
            "removals", "uint32_t", "dispatch", "changes when files of the queue are removed or made anew"
        ),
    ),
)

QUEUE_SLOT_FIELDS, QUEUE_SLOT_BYTES = line_offsets(QUEUE_SLOT_LINES)
