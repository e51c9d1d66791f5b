"""The slot of a queue in the control block."""

from __future__ import annotations

from cystore.layout.shapes import Shared, line_offsets

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
