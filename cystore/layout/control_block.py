"""The control block: the memory that all attached processes share, its locks and its words.

A field's `owner` names the lock under which the field is written.
"""

from __future__ import annotations

from cystore.layout.disk import DISK_STRUCTS
from cystore.layout.process_slot import PROCESS_SLOT_BYTES, PROCESS_SLOT_FIELDS, PROCESS_SLOTS
from cystore.layout.queue import QUEUE_SLOT_FIELDS
from cystore.layout.shapes import MUTEX_BYTES, Shared, line_offsets
from cystore.layout.topics import CONSTANTS as TOPIC_CONSTANTS
from cystore.layout.version import LAYOUT_VERSION

LOCK_NAMES = ("clean", "housekeeping", "deliver", "dispatch", "append", "flush", "sync", "commit")
# Work for the whole store, each kind done by one process at a time; a name keeps its place for ever.
DUTIES = ("reput", "deliver_delayed", "clean_expired", "flush", "checkpoint", "chord_sweep", "scrub")
DUTY_WORDS = ("token", "until_ms", "begun_ms", "took_us", "done", "outcome", "runs", "pid")
DUTIES_MAX = WORDS_OF_DUTY = 8
KEY_WORDS = 64  # a key uses one of these words, and one of the word's 32 bits
# "manifest" is a leaf: its holder takes no other lock.
MUTEX_NAMES = (*LOCK_NAMES, *(f"duty_{name}" for name in DUTIES), "manifest")
LATENCY_BUCKETS = 13
DELAY_LEVELS_MAX = TOPIC_CONSTANTS["DELAY_LEVELS_MAX"][0]

# The first two lines, up to `release`, keep their places in every later layout: see
# cystore/engine/inspect/control_head.py. So do `wrote`, `dispatched` and `min_physical_offset`:
# cystore/engine/inspect/control_words.py.
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
            "inode of the PID namespace of the process that made the block",
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
    # An append writes to the next two lines, to its queue's first line, and to the log: a hand-over from one process to
    # another moves these lines.
    (
        Shared(
            "wrote", "int64_t", "append", "wrote position; its release store is the commit point of an append"
        ),
        Shared(
            "append_lock", "packed_mutex", "append", "the append lock, in the line that its owner needs first"
        ),
        Shared("append_seq", "uint32_t", "append", "futex word: changes with each append"),
        Shared("intent_active", "uint32_t", "append", "1 while [intent_from, intent_to) is being written"),
    ),
    (
        Shared("intent_from", "int64_t", "append", ""),
        Shared("intent_to", "int64_t", "append", ""),
        Shared("last_store_timestamp", "int64_t", "append", "ms; store timestamps never go back"),
        Shared(
            "last_record",
            "int64_t",
            "append",
            "physical offset of the last record; stored after wrote, so its end is never past it",
        ),
        Shared("put_count", "uint64_t", "append", "messages appended since the first attach"),
        Shared("put_bytes", "uint64_t", "append", "their record bytes"),
        Shared(
            "appended",
            "int64_t",
            "append",
            "end of the log in the pool's buffers; a commit moves wrote up to it. Without a pool it is not used",
        ),
        Shared(
            "appended_record",
            "int64_t",
            "append",
            "physical offset of the last record below appended; stored after it",
        ),
    ),
    (
        Shared(
            "put_latency",
            "uint64_t",
            "append",
            "puts by milliseconds taken, StoreStatsService's bounds; the first, of all the others, stays 0",
            LATENCY_BUCKETS,
        ),
        Shared("put_time_max_ms", "int64_t", "append", "longest put"),
        Shared(
            "clock_clamps", "uint64_t", "append", "puts whose clock was more than 60 s behind the last one"
        ),
        Shared("queue_count", "uint32_t", "append", "published queue slots"),
        Shared("pooled", "uint32_t", "attach", "1: appends go to a pool of buffers (TransientStorePool)"),
    ),
    (
        Shared(
            "append_sleepers",
            "uint32_t",
            "atomic",
            "futex word: 1 while a thread may sleep until the next append, which sets it to 0 and wakes all",
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
            "key_sleepers", "uint32_t", "atomic", "a bit for each key that a thread may wait for", KEY_WORDS
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
        Shared("gathered", "uint64_t", "flush", "put_count when the last sync for waiting puts began"),
        Shared("group_before", "uint64_t", "flush", "puts that the last sync but one was for"),
        Shared("group_last", "uint64_t", "flush", "puts that the last sync was for"),
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
        Shared("pool_buffers", "uint32_t", "attach", "buffers that the pool has"),
        Shared(
            "next_process", "uint32_t", "attach", "the slot where the next process looks for a free one first"
        ),
        Shared(
            "namespaces", "uint32_t", "attach", "1: writers of several PID namespaces are or were attached"
        ),
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
    (
        Shared("replicated", "int64_t", "ha", "highest log position that a slave has reported"),
        Shared("replicas", "uint32_t", "ha", "slaves that are connected"),
        Shared("in_sync", "uint32_t", "ha", "members of the in-sync set, this one too"),
        Shared(
            "in_sync_needed", "uint32_t", "ha", "so many acknowledge a replicated put (min_in_sync_replicas)"
        ),
        Shared("confirming", "uint32_t", "ha", "1: reads end at `confirmed`; 0: at the end of the log"),
        Shared("epoch", "int64_t", "ha", "in which this store is the elected master; 0: it is none"),
        Shared(
            "lease_until_ms",
            "int64_t",
            "ha",
            "CLOCK_BOOTTIME when the lease of that epoch ends, less a margin; replicated puts are refused from then on",
        ),
        Shared("confirmed", "int64_t", "ha", "no failover takes back what is below this log position"),
    ),
    (
        Shared(
            "put_failed", "uint64_t", "atomic", "calls of put whose append was refused or ended in an error"
        ),
        Shared("put_slow", "uint64_t", "atomic", "puts that took longer than SLOW_PUT_MS"),
        Shared("room_requests", "uint64_t", "atomic", "puts that had to wait for room in the log"),
        Shared("room_wait_ms", "uint64_t", "atomic", "how long they waited, all together"),
        Shared("room_wait_max_ms", "int64_t", "atomic", "the longest of these waits"),
        Shared("files_made", "uint64_t", "atomic", "files of the log that were made"),
    ),
    (
        Shared(
            "get_latency",
            "uint64_t",
            "atomic",
            "gets by milliseconds taken, the bounds of put_latency; readers add what they counted now and then",
            LATENCY_BUCKETS,
        ),
        Shared("get_time_max_ms", "int64_t", "atomic", "longest get"),
        Shared("get_found", "uint64_t", "atomic", "gets that found messages"),
        Shared("get_messages", "uint64_t", "atomic", "the messages that they found"),
        Shared("query_count", "uint64_t", "atomic", "queries by key"),
    ),
)

FLAGS = {
    "FLAG_SYNC_FAILED": (1, "an fsync failed: read-only until reopened"),
    "FLAG_NOT_WRITABLE": (2, "switched off by an operator"),
    "FLAG_CORRUPT": (4, "dispatch met a damaged record"),
    "FLAG_DISK_FULL": (8, "the disk is fuller than the settings allow"),
    "FLAG_SLAVE": (16, "a slave: only what its master sends is appended"),
}

# Behind the fields each lock has a line. That of "append" is not used: `append_lock` stands beside `wrote`.
CONTROL_FIELDS, CONTROL_LOCKS_AT = line_offsets(CONTROL_LINES)
CONTROL_BYTES = CONTROL_LOCKS_AT + MUTEX_BYTES * len(MUTEX_NAMES)
CONTROL_BUCKETS_AT = 4096
CONTROL_BUCKETS = 16384
CONTROL_PROCESSES_AT = CONTROL_BUCKETS_AT + 4 * CONTROL_BUCKETS
CONTROL_QUEUES_AT = CONTROL_PROCESSES_AT + PROCESS_SLOT_BYTES * PROCESS_SLOTS

CONTROL_MAGIC = int.from_bytes(b"CYSTORE1", "big")

assert CONTROL_BYTES <= CONTROL_BUCKETS_AT


def fingerprint() -> int:
    """A hash of the whole layout, with the texts of shared fields: a process with another layout is refused, so change
    these texts only together with the layout. The kernels have it as LAYOUT_FINGERPRINT."""
    import hashlib  # loads OpenSSL; only the build needs it

    shapes = (
        *(
            LAYOUT_VERSION,
            QUEUE_SLOT_FIELDS,
            PROCESS_SLOT_FIELDS,
            CONTROL_FIELDS,
            MUTEX_NAMES,
            DUTY_WORDS,
            CONTROL_BYTES,
            CONTROL_BUCKETS,
            PROCESS_SLOTS,
        ),
        DISK_STRUCTS,
    )
    return int.from_bytes(hashlib.sha256(repr(shapes).encode()).digest()[:8], "big") >> 1
