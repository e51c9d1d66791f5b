"""Small files of a store: checkpoint, manifest, table of queues, blocks of the timer."""

from __future__ import annotations

from cystore.layout.shapes import Constants, DiskStruct, Field

CHECKPOINT = DiskStruct(
    "checkpoint",
    "Checkpoint; what stands at 24 and after is zero in RocketMQ's own",
    (
        Field("physic_timestamp", 0, 8, "store time of the last record known flushed, ms"),
        Field("logics_timestamp", 8, 8, "store time of the last record whose queue entry is flushed, ms"),
        Field("index_timestamp", 16, 8, "store time of the last record in a flushed index file, ms"),
        Field("watermark", 24, 8, "durable watermark: flushed physical offset"),
        Field("last_record", 32, 8, "physical offset of the last record below the watermark"),
        Field("last_record_checksum", 40, 4, "that record's checksum field", unsigned=True),
        Field("index_watermark", 48, 8, "physical offset through which index entries are synced"),
        Field("clock_boot", 56, 8, "which boot of the host the next five speak of"),
        Field("clock_offset_ms", 64, 8, "the store's clock is CLOCK_BOOTTIME and so much"),
        Field("clock_seen_ms", 72, 8, "the same for a wall clock that jumped and is not believed, 0: none"),
        Field("clock_seen_since_ms", 80, 8, "CLOCK_BOOTTIME when that was seen first"),
        Field("clock_stood_ms", 88, 8, "CLOCK_BOOTTIME when the clock that is believed was seen first"),
        Field("clock_known_ms", 96, 8, "the last store timestamp before that, 0: nothing depends on it"),
        Field("clock_check", 104, 8, "all six, so that a half of them is not believed"),
    ),
)

MANIFEST_SLOT = DiskStruct(
    "manifest_slot",
    "Manifest: one of the two slots of equal length in the file; the payload, JSON, follows at 32",
    (
        Field("magic", 0, 8, "'CYSMANI1'", unsigned=True),
        Field("sequence", 8, 8, "the slot with the higher one counts"),
        Field("slot_bytes", 16, 4, "length of one slot"),
        Field("payload_bytes", 20, 4, "length of the payload"),
        Field("checksum", 24, 4, "CRC-32C of the bytes before this field and of the payload", unsigned=True),
    ),
)

QUEUE_TABLE_HEADER = DiskStruct(
    "queue_table_header",
    "config/queueTable: header; the topics' names, each behind its length in a byte, and the rows follow",
    (
        Field("magic", 0, 8, "'CYSQTAB1'", unsigned=True),
        Field("begin", 8, 8, "the log's first physical offset at the close"),
        Field("end", 16, 8, "the log's end at the close"),
        Field("last_record", 24, 8, "the checkpoint's"),
        Field("last_record_checksum", 32, 4, "the checkpoint's", unsigned=True),
        Field("queue_file_bytes", 36, 4, "length of the consume queue files"),
        Field("offsets_mark", 40, 8, "of config/queueOffset.json: changes with the file", unsigned=True),
        Field("folders_mark", 48, 8, "of the folders of all topics", unsigned=True),
        Field("topics", 56, 4, "how many names follow"),
        Field("queues", 60, 4, "how many rows follow"),
        Field(
            "checksum",
            64,
            4,
            "CRC-32C of the bytes before this field and of all behind it",
            unsigned=True,
        ),
    ),
)

QUEUE_TABLE_ROW = DiskStruct(
    "queue_table_row",
    "config/queueTable: one queue; a topic's rows follow each other",
    (
        Field("topic", 0, 4, "number of the name"),
        Field("queue_id", 4, 4, ""),
        Field("next", 8, 8, "offset of the next message; every one below it has its entry"),
        Field("minimum", 16, 8, "lowest offset that can be read"),
        Field("mark", 24, 8, "changes with the queue's files", unsigned=True),
    ),
)

TIMER_BLOCK = DiskStruct(
    "timer_block",
    "timer/: header of a block",
    (
        Field("magic", 0, 8, "'CYSTIMR1'", unsigned=True),
        Field("begin", 8, 8, "queue offset of the block's first message"),
        Field("sorted", 16, 4, "1: the order of due times is there"),
        Field("checksum", 20, 4, "CRC-32C of the order", unsigned=True),
        Field("changes", 24, 8, "notes that were written or taken back"),
        Field("synced", 32, 8, "how many of these are durable"),
    ),
)
_BLOCK_MESSAGES = 65536  # a place in a block has two bytes
_LEFT_AT = 4096  # the header has a page for itself
_DUE_AT = _LEFT_AT + 8 * _BLOCK_MESSAGES
_PLACE_AT = _DUE_AT + 8 * _BLOCK_MESSAGES

CONSTANTS: Constants = {
    "CHECKPOINT_BYTES": (4096, ""),
    "TIMER_BLOCK_MESSAGES": (_BLOCK_MESSAGES, "queue offsets in a block of the timer"),
    "TIMER_LEFT_AT": (_LEFT_AT, "8 bytes for each message: which record took its place, 0 while it waits"),
    "TIMER_DUE_AT": (_DUE_AT, "8 bytes for each message: the due times in ascending order, ms"),
    "TIMER_PLACE_AT": (_PLACE_AT, "2 bytes for each of these due times: the message's place in the block"),
    "TIMER_BLOCK_BYTES": (_PLACE_AT + 2 * _BLOCK_MESSAGES, "of a block of the timer"),
}
