"""Every stored or shared struct, once, as data.

Disk structs are big-endian and reached through accessors; the control block is a native C struct that the attached processes
share. ``python tools/layout_sources.py`` writes ``_native/layout.h``, ``_native/layout.pxd`` and the tables in ``docs/format.md`` from
it. This file imports nothing of the package, so that runs before any build.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

LAYOUT_VERSION = 3
RELEASE = "0.1.0"

RECORD_MAGIC_ROCKETMQ = 0xDAA320A7
RECORD_MAGIC_BLANK = 0xCBD43194
RECORD_MAGIC_CYSTORE = 0x43595331

CONSTANTS: dict[str, tuple[int, str]] = {
    "RECORD_MAGIC_ROCKETMQ": (RECORD_MAGIC_ROCKETMQ, "record of RocketMQ 4.9.3 (MESSAGE_MAGIC_CODE)"),
    "RECORD_MAGIC_BLANK": (RECORD_MAGIC_BLANK, "end-of-file filler (CommitLog.BLANK_MAGIC_CODE)"),
    "RECORD_MAGIC_CYSTORE": (RECORD_MAGIC_CYSTORE, "record whose checksum covers all of it, 'CYS1'"),
    "BLANK_SIZE_MIN": (8, "total size and magic"),
    "TOPIC_BYTES_MAX": (127, "the length is a signed byte"),
    "PROPERTIES_BYTES_MAX": (32767, "the length is a signed short"),
    "SYS_FLAG_COMPRESSED": (1, "body is compressed"),
    "SYS_FLAG_MULTI_TAGS": (2, ""),
    "SYS_FLAG_TRANSACTION_MASK": (12, ""),
    "SYS_FLAG_PREPARED": (4, "half message: indexed, no queue entry"),
    "SYS_FLAG_COMMIT": (8, ""),
    "SYS_FLAG_ROLLBACK": (12, "no index entry, no queue entry"),
    "SYS_FLAG_BORN_HOST_V6": (16, ""),
    "SYS_FLAG_STORE_HOST_V6": (32, ""),
    "QUEUE_ENTRY_BYTES": (20, "one message in a consume queue"),
    "HOLE_ENTRY_SIZE": (0x7FFFFFFF, "size field of pre-blank and hole entries"),
    "INDEX_HEADER_BYTES": (40, ""),
    "INDEX_SLOT_BYTES": (4, ""),
    "INDEX_ENTRY_BYTES": (20, ""),
    "CHECKPOINT_BYTES": (4096, ""),
    "DELAY_LEVELS_MAX": (64, "levels in message_delay_level; RocketMQ's default has 18"),
    "DELAY_SECONDS_MAX": (3_153_600_000, "of one level: a hundred years"),
    "DELAY_RUN_QUEUES": (256, "queue ids of SCHEDULE_TOPIC_XXXX between two queues of a level"),
    "DELAY_PROPERTY_ROOM": (112, "bytes that delivery may add to the properties of a delayed message"),
}


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


DISK_STRUCTS = (
    DiskStruct(
        "record",
        "Fixed prefix of a record in the commit log; hosts and what follows them vary in length",
        (
            Field("total_size", 0, 4, "bytes of the whole record"),
            Field("magic", 4, 4, "record format", unsigned=True),
            Field(
                "checksum_field",
                8,
                4,
                "RocketMQ: CRC-32 of the body, top bit 0; cystore: CRC-32C of all but this field",
                True,
            ),
            Field("queue_id", 12, 4, ""),
            Field("flag", 16, 4, "the user's"),
            Field("queue_offset", 20, 8, "position in the consume queue; 0 for prepared and rollback"),
            Field("physical_offset", 28, 8, "position of this record in the commit log"),
            Field(
                "sys_flag",
                36,
                4,
                "1 compressed, 2 multi tags, 4/8/12 transaction, 16/32 IPv6 born/store host",
            ),
            Field("born_timestamp", 40, 8, "ms"),
        ),
    ),
    DiskStruct(
        "queue_entry_disk",
        "Consume queue entry",
        (
            Field("physical_offset", 0, 8, "of the record"),
            Field("size", 8, 4, "of the record; 0x7FFFFFFF in pre-blank and hole entries"),
            Field("tags_code", 12, 8, "hash of the tags, due time of a delayed message, or ext address"),
        ),
    ),
    DiskStruct(
        "index_header",
        "Index file header",
        (
            Field("begin_timestamp", 0, 8, "ms"),
            Field("end_timestamp", 8, 8, "ms"),
            Field("begin_physical_offset", 16, 8, ""),
            Field("end_physical_offset", 24, 8, ""),
            Field("used_slots", 32, 4, ""),
            Field("next_entry", 36, 4, "number of the next entry; the first is 1"),
        ),
    ),
    DiskStruct(
        "index_entry",
        "Index entry",
        (
            Field("key_hash", 0, 4, "|Java hashCode of topic#key|"),
            Field("physical_offset", 4, 8, "of the record"),
            Field("seconds", 12, 4, "store time since the header's begin, s"),
            Field("previous", 16, 4, "entry number of the slot's previous entry, 0 = none"),
        ),
    ),
    DiskStruct(
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
            Field(
                "clock_seen_ms", 72, 8, "the same for a wall clock that jumped and is not believed, 0: none"
            ),
            Field("clock_seen_since_ms", 80, 8, "CLOCK_BOOTTIME when that was seen first"),
            Field("clock_stood_ms", 88, 8, "CLOCK_BOOTTIME when the clock that is believed was seen first"),
            Field("clock_known_ms", 96, 8, "the last store timestamp before that, 0: nothing depends on it"),
            Field("clock_check", 104, 8, "all six, so that a half of them is not believed"),
        ),
    ),
    DiskStruct(
        "manifest_slot",
        "Manifest: one of the two slots of equal length in the file; the payload, JSON, follows at 32",
        (
            Field("magic", 0, 8, "'CYSMANI1'", unsigned=True),
            Field("sequence", 8, 8, "the slot with the higher one counts"),
            Field("slot_bytes", 16, 4, "length of one slot"),
            Field("payload_bytes", 20, 4, "length of the payload"),
            Field(
                "checksum", 24, 4, "CRC-32C of the bytes before this field and of the payload", unsigned=True
            ),
        ),
    ),
    DiskStruct(
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
    ),
    DiskStruct(
        "queue_table_row",
        "config/queueTable: one queue; a topic's rows follow each other",
        (
            Field("topic", 0, 4, "number of the name"),
            Field("queue_id", 4, 4, ""),
            Field("next", 8, 8, "offset of the next message; every one below it has its entry"),
            Field("minimum", 16, 8, "lowest offset that can be read"),
            Field("mark", 24, 8, "changes with the queue's files", unsigned=True),
        ),
    ),
)


class Part(NamedTuple):
    """One part of a record behind its fixed prefix. Either `width` bytes; or, with `v6_flag`, as many as a host has; or as many as a length
    of `length_width` bytes says, which stands before it."""

    name: str
    doc: str
    width: int = 0
    length_width: int = 0
    v6_flag: str = ""


HOST_V4_BYTES, HOST_V6_BYTES = 8, 20  # address and port, four bytes
RECORD_PARTS = (
    Part("born_host", "address and port of the producer", v6_flag="SYS_FLAG_BORN_HOST_V6"),
    Part("store_timestamp", "ms", width=8),
    Part("store_host", "address and port of the store", v6_flag="SYS_FLAG_STORE_HOST_V6"),
    Part("reconsume_times", "", width=4),
    Part("prepared_transaction_offset", "physical offset of the half message", width=8),
    Part("body", "", length_width=4),
    Part("topic", "", length_width=1),
    Part("properties", "name 0x01 value 0x02, again and again", length_width=2),
)
_PREFIX_BYTES = max(field.at + field.width for field in DISK_STRUCTS[0].fields)
_BODY = [part.name for part in RECORD_PARTS].index("body")
_BODY_AT = _PREFIX_BYTES + sum(part.width + part.length_width for part in RECORD_PARTS[: _BODY + 1])
_FIXED_BYTES = _BODY_AT + sum(part.width + part.length_width for part in RECORD_PARTS[_BODY + 1 :])
_CHECKSUM_FIELD = next(field for field in DISK_STRUCTS[0].fields if field.name == "checksum_field")
CONSTANTS |= {
    "HOST_V4_BYTES": (HOST_V4_BYTES, "of a host in a record: IPv4 address and port"),
    "HOST_V6_BYTES": (HOST_V6_BYTES, "IPv6 address and port"),
    "RECORD_PREFIX_BYTES": (_PREFIX_BYTES, "before the first host"),
    "RECORD_BODY_AT": (_BODY_AT, "where the body begins, but for the hosts before it"),
    "RECORD_TAIL_FIXED_BYTES": (_FIXED_BYTES - _BODY_AT, "behind the body: lengths of topic and properties"),
    "RECORD_FIXED_BYTES": (_FIXED_BYTES, "but for hosts, body, topic and properties"),
    "RECORD_HEAD_BYTES_MAX": (_BODY_AT + 2 * HOST_V6_BYTES, "up to the body, whatever the hosts"),
    "RECORD_SIZE_MIN": (_FIXED_BYTES + 2 * HOST_V4_BYTES, "IPv4 hosts, and nothing that varies in length"),
    "RECORD_CHECKED_AT": (_CHECKSUM_FIELD.at + _CHECKSUM_FIELD.width, "behind the checksum: checked"),
}

# Where messages wait until they are due (TopicValidator.RMQ_SYS_SCHEDULE_TOPIC), and the half messages of transactions.
SCHEDULE_TOPIC, HALF_TOPIC = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"

# Transaction bits of the sys flag (SYS_FLAG_TRANSACTION_MASK) of messages that a consume queue holds, and of those that the index does not.
IN_QUEUE = (0, CONSTANTS["SYS_FLAG_COMMIT"][0])
NOT_IN_INDEX = (CONSTANTS["SYS_FLAG_ROLLBACK"][0],)

_CODES = {(1, False): "b", (2, False): "h", (4, False): "i", (8, False): "q", (4, True): "I", (8, True): "Q"}


def codec(name: str) -> struct.Struct:
    """Packs and unpacks all fields of a disk struct whose fields follow each other without gaps."""
    fields = next(disk.fields for disk in DISK_STRUCTS if disk.name == name)
    return struct.Struct(">" + "".join(_CODES[field.width, field.unsigned] for field in fields))


def field_of(struct_name: str, name: str) -> tuple[int, struct.Struct]:
    """Where one field of a disk struct is, and what reads and writes it."""
    (field,) = (f for disk in DISK_STRUCTS if disk.name == struct_name for f in disk.fields if f.name == name)
    return field.at, struct.Struct(">" + _CODES[field.width, field.unsigned])


def record_store_timestamp(head: bytes) -> int:
    """The store timestamp of a record whose first RECORD_SIZE_MIN bytes are given."""
    at, sys_flag = field_of("record", "sys_flag")
    v6 = sys_flag.unpack_from(head, at)[0] & CONSTANTS["SYS_FLAG_BORN_HOST_V6"][0]
    begin = _PREFIX_BYTES + (HOST_V6_BYTES if v6 else HOST_V4_BYTES)
    return int.from_bytes(head[begin : begin + 8], "big", signed=True)


def takes_queue_offset(sys_flag: int) -> bool:
    """Whether a message has a place in its consume queue: prepared and rolled back messages have none."""
    return sys_flag & CONSTANTS["SYS_FLAG_TRANSACTION_MASK"][0] in IN_QUEUE


def takes_index_entry(sys_flag: int) -> bool:
    """Whether the index holds a message's keys: those of rolled back messages it does not."""
    return sys_flag & CONSTANTS["SYS_FLAG_TRANSACTION_MASK"][0] not in NOT_IN_INDEX


QUEUE_ENTRY, INDEX_HEADER, INDEX_ENTRY = (
    codec("queue_entry_disk"),
    codec("index_header"),
    codec("index_entry"),
)


@dataclass(frozen=True)
class Shared:
    """One field of the control block. `type` is a C type; `count` > 1 makes an array. `owner` says who may write it."""

    name: str
    type: str
    owner: str
    doc: str
    count: int = 1


TYPE_BYTES = {"int64_t": 8, "uint64_t": 8, "int32_t": 4, "uint32_t": 4, "char": 1, "uint8_t": 1}
CACHE_LINE_BYTES = 64
MUTEX_BYTES = 64

LOCK_NAMES = ("clean", "housekeeping", "deliver", "dispatch", "append", "flush", "sync")
# Work that is done for the whole store, each by one process at a time; a name stays at its place for ever.
DUTIES = ("reput", "deliver_delayed", "clean_expired", "flush", "checkpoint", "chord_sweep", "scrub")
DUTY_WORDS = ("token", "until_ms", "begun_ms", "took_us", "done", "outcome", "runs", "pid")
DUTIES_MAX = WORDS_OF_DUTY = 8
KEY_WORDS = 64  # a key has one of them, and one of its 32 bits
# "manifest" is a leaf: its holder takes no other lock.
MUTEX_NAMES = (*LOCK_NAMES, *(f"duty_{name}" for name in DUTIES), "manifest")
LATENCY_BUCKETS = 13
DELAY_LEVELS_MAX = CONSTANTS["DELAY_LEVELS_MAX"][0]

QUEUE_SLOT_LINES: tuple[tuple[Shared, ...], ...] = (
    (
        Shared("next", "int64_t", "append", "next queue offset, of what is published"),
        Shared("claimed", "int64_t", "append", "next queue offset, of what is being written too"),
        Shared("hash_next", "uint32_t", "append", "slot + 1 of the next queue in this bucket, 0 = none"),
        Shared("hash", "uint32_t", "append", "of topic and queue id"),
        Shared("queue_id", "int32_t", "append", "constant once published"),
        Shared("topic_bytes", "uint32_t", "append", "length of topic"),
        Shared(
            "sleepers", "uint32_t", "atomic", "futex word: 1 while somebody may sleep until an append to it"
        ),
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

# The first two lines, up to `release`, keep their places in every later layout: see cystore/engine/inspect/control_head.py. So do `wrote`,
# `dispatched` and `min_physical_offset`: cystore/engine/inspect/control_words.py.
CONTROL_LINES: tuple[tuple[Shared, ...], ...] = (
    (
        Shared("magic", "uint64_t", "attach", "CYSTORE1; the first thing a later attacher looks at"),
        Shared("fingerprint", "uint64_t", "attach", "hash of this layout"),
        Shared("page_bytes", "uint32_t", "attach", ""),
        Shared("mutex_bytes", "uint32_t", "attach", "sizeof(pthread_mutex_t)"),
        Shared(
            "pid_namespace",
            "uint64_t",
            "attach",
            "inode of the PID namespace: robust ownership is a thread id in it",
        ),
        Shared("commit_log_file_bytes", "int64_t", "attach", ""),
        Shared("consume_queue_file_bytes", "int64_t", "attach", ""),
        Shared("max_hash_slot_num", "uint32_t", "attach", ""),
        Shared("max_index_num", "uint32_t", "attach", ""),
        Shared("max_queues", "uint32_t", "attach", "slots that the address range holds"),
        Shared("bucket_count", "uint32_t", "attach", "power of two"),
    ),
    (
        Shared("boot_id", "char", "attach", "", 40),
        Shared("c_library", "char", "attach", "", 40),
        Shared("generation", "uint64_t", "attach", "random; new with each control block"),
        Shared("layout_version", "uint32_t", "attach", "number of this layout"),
        Shared("handover", "uint32_t", "operator", "not 0: attached processes are asked to leave"),
        Shared("release", "char", "attach", "version of cystore that made the block", 32),
    ),
    (
        Shared(
            "wrote", "int64_t", "append", "wrote position; its release store is the commit point of an append"
        ),
        Shared("last_store_timestamp", "int64_t", "append", "ms; store timestamps never go back"),
        Shared("append_seq", "uint32_t", "append", "futex word: changes with each append"),
        Shared("queue_count", "uint32_t", "append", "published queue slots"),
        Shared(
            "last_record",
            "int64_t",
            "append",
            "physical offset of the last record; stored after wrote, so its end is never past it",
        ),
        Shared("put_count", "uint64_t", "append", "messages appended since the first attach"),
        Shared("put_bytes", "uint64_t", "append", "their record bytes"),
        Shared(
            "clock_clamps", "uint64_t", "append", "puts whose clock was more than 60 s behind the last one"
        ),
    ),
    (
        Shared("intent_active", "uint32_t", "append", "1 while [intent_from, intent_to) is being written"),
        Shared("intent_owner", "uint32_t", "append", "thread id, for reports"),
        Shared("intent_from", "int64_t", "append", ""),
        Shared("intent_to", "int64_t", "append", ""),
    ),
    (
        Shared(
            "put_latency",
            "uint64_t",
            "append",
            "puts by milliseconds taken, StoreStatsService's bounds",
            LATENCY_BUCKETS,
        ),
        Shared("put_time_max_ms", "int64_t", "append", "longest put"),
    ),
    (
        Shared(
            "append_sleepers",
            "uint32_t",
            "atomic",
            "futex word: 1 while somebody may sleep until the next append, which sets it to 0 and wakes all",
        ),
    ),
    (
        Shared(
            "key_seq",
            "uint32_t",
            "atomic",
            "futex words: that of a key changes when the key is woken",
            KEY_WORDS,
        ),
    ),
    (
        Shared(
            "key_sleepers", "uint32_t", "atomic", "a bit for each key that somebody may sleep for", KEY_WORDS
        ),
    ),
    (
        Shared("flushed", "int64_t", "flush", "flushed position: everything below is durable"),
        Shared("flush_seq", "uint32_t", "flush", "futex word: changes with each flush and each failure"),
        Shared("queues_flushed_timestamp", "int64_t", "sync", "checkpoint's logics timestamp"),
        Shared("index_flushed", "int64_t", "sync", "physical offset through which index entries are synced"),
        Shared("flushed_ms", "int64_t", "flush", "monotonic time of the last flush of the log"),
        Shared(
            "checkpointed", "int64_t", "flush", "the flushed position when the checkpoint was synced last"
        ),
        Shared("checkpointed_ms", "int64_t", "flush", "monotonic time of that"),
    ),
    (
        Shared(
            "queues_flushed_ms", "int64_t", "sync", "monotonic time of the last flush of queues and index"
        ),
        Shared("offsets_saved", "int64_t", "clean", "the log position that config/queueOffset.json has"),
        Shared("offsets_saved_ms", "int64_t", "clean", "monotonic time when it was written"),
    ),
    (
        Shared("dispatched", "int64_t", "dispatch", "log position up to which queues and index are built"),
        Shared("dispatch_seq", "uint32_t", "dispatch", "futex word: changes with each dispatch"),
        Shared("index_seq", "uint32_t", "dispatch", "changes when an index file is made or removed"),
        Shared("index_base", "int64_t", "dispatch", "name of the newest index file as a number"),
        Shared("index_allocated", "int64_t", "dispatch", "bytes of the newest index file that are allocated"),
        Shared(
            "dispatched_timestamp", "int64_t", "dispatch", "store timestamp of the last dispatched record, ms"
        ),
        Shared("dispatch_count", "uint64_t", "dispatch", "records dispatched since the first attach"),
    ),
    (
        Shared("allocated", "int64_t", "housekeeping", "log position up to which space is allocated"),
        Shared(
            "min_physical_offset",
            "int64_t",
            "clean",
            "lowest readable log position; published before an unlink",
        ),
        Shared(
            "segment_seq",
            "uint32_t",
            "housekeeping",
            "futex word: changes when allocated moves or a segment goes",
        ),
        Shared("queue_capacity", "uint32_t", "housekeeping", "queue slots whose memory is allocated"),
        Shared("ready_base", "int64_t", "housekeeping", "base of the newest commit log file"),
        Shared("followed", "int64_t", "clean", "the log's minimum that all queues and the index follow"),
    ),
    (
        Shared(
            "delivered",
            "int64_t",
            "deliver",
            "log position up to which delivered messages are counted in their queues' delivered",
        ),
        Shared("delivering", "uint32_t", "deliver", "1: there may be delivered messages behind it"),
        Shared("delay_level_count", "uint32_t", "attach", "delay levels of this store"),
        Shared("delivered_saved", "int64_t", "deliver", "the position that config/delayOffset.json has"),
        Shared("delivered_saved_ms", "int64_t", "deliver", "monotonic time when it was written"),
        Shared("delay_ms", "int64_t", "attach", "of each level, 1 first", DELAY_LEVELS_MAX),
    ),
    (
        Shared("clock_offset_ms", "int64_t", "clock", "the store's clock is CLOCK_BOOTTIME and so much"),
        Shared(
            "clock_seen_ms",
            "int64_t",
            "clock",
            "the same for a wall clock that jumped and is not believed yet, 0: none",
        ),
        Shared("clock_seen_since_ms", "int64_t", "clock", "CLOCK_BOOTTIME when that was seen first"),
        Shared("clock_look_ms", "int64_t", "clock", "CLOCK_BOOTTIME of the last look that counted"),
        Shared(
            "clock_stood_ms",
            "int64_t",
            "clock",
            "CLOCK_BOOTTIME when the clock that is believed was seen first",
        ),
        Shared(
            "clock_known_ms",
            "int64_t",
            "clock",
            "the last store timestamp before that, 0: nothing depends on it",
        ),
        Shared(
            "clock_jump_ms", "int64_t", "attach", "a jump of more is not believed at once (max_clock_jump_s)"
        ),
        Shared("clock_looks", "uint32_t", "clock", "looks at a clock that jumped"),
        Shared("clock_jumps", "uint32_t", "clock", "jumps that were seen since the first attach"),
    ),
    (
        Shared("flags", "uint32_t", "atomic", "why the store cannot be written: see FLAG_*"),
        Shared("failed_errno", "int32_t", "atomic", "errno of the sync that failed"),
        Shared(
            "repair_due",
            "uint32_t",
            "atomic",
            "a bit for each lock whose owner died or failed inside and left a repair to do",
        ),
        Shared(
            "turns_over_budget", "uint32_t", "atomic", "turns under a lock that took longer than they should"
        ),
        Shared("guard", "uint64_t", "attach", "static guard, ~magic"),
        Shared("manifest_seq", "int64_t", "manifest", "sequence number of the newest durable manifest"),
    ),
    (
        Shared(
            "duties",
            "int64_t",
            "duty",
            "a cache line for each of DUTIES: highest token, end of the lease, last run (DUTY_WORDS)",
            DUTIES_MAX * WORDS_OF_DUTY,
        ),
    ),
)

FLAGS = {
    "FLAG_SYNC_FAILED": (1, "an fsync failed: read-only until reopened"),
    "FLAG_NOT_WRITABLE": (2, "switched off by an operator"),
    "FLAG_CORRUPT": (4, "dispatch met a damaged record"),
    "FLAG_DISK_FULL": (8, "the disk is fuller than the settings allow"),
}


def _line_offsets(
    lines: tuple[tuple[Shared, ...], ...], start: int = 0
) -> tuple[list[tuple[Shared, int]], int]:
    """Offset of each field when every line starts on a cache line; and the end, rounded up to one."""
    placed, at = [], start
    for line in lines:
        at = -(-at // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        for field in line:
            width = TYPE_BYTES[field.type]
            at = -(-at // width) * width
            placed.append((field, at))
            at += width * field.count
    return placed, -(-at // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


QUEUE_SLOT_FIELDS, QUEUE_SLOT_BYTES = _line_offsets(QUEUE_SLOT_LINES)
CONTROL_FIELDS, CONTROL_LOCKS_AT = _line_offsets(CONTROL_LINES)
CONTROL_BYTES = CONTROL_LOCKS_AT + MUTEX_BYTES * len(MUTEX_NAMES)
CONTROL_BUCKETS_AT = 4096
CONTROL_BUCKETS = 16384
CONTROL_QUEUES_AT = CONTROL_BUCKETS_AT + 4 * CONTROL_BUCKETS

_canonical = repr(
    (
        LAYOUT_VERSION,
        QUEUE_SLOT_FIELDS,
        CONTROL_FIELDS,
        MUTEX_NAMES,
        DUTY_WORDS,
        CONTROL_BYTES,
        CONTROL_BUCKETS,
        DISK_STRUCTS,
    )
)
FINGERPRINT = int.from_bytes(hashlib.sha256(_canonical.encode()).digest()[:8], "big") >> 1
CONTROL_MAGIC = int.from_bytes(b"CYSTORE1", "big")

assert CONTROL_BYTES <= CONTROL_BUCKETS_AT
