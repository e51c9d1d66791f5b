"""Every stored or shared byte, once, as data: one module for each kind of struct.

Disk structs are big-endian and reached through accessors; the control block is a native C struct that the attached
processes share. From this data, ``python tools/layout_sources.py`` writes the C header, the Cython declarations, the
properties of `Control` and the tables of docs/format.md. It runs before any build, so nothing here imports a kernel.

May import `cystore.errors` and what is below it: docs/architecture.md.
"""

from cystore.layout import index, queue, record, store_files, sys_flags, topics
from cystore.layout.control_block import (
    CONTROL_BUCKETS,
    CONTROL_BUCKETS_AT,
    CONTROL_BYTES,
    CONTROL_FIELDS,
    CONTROL_LOCKS_AT,
    CONTROL_MAGIC,
    CONTROL_PROCESSES_AT,
    CONTROL_QUEUES_AT,
    DUTIES,
    DUTIES_MAX,
    DUTY_WORDS,
    FLAGS,
    KEY_WORDS,
    LATENCY_BUCKETS,
    LOCK_NAMES,
    MUTEX_NAMES,
    WORDS_OF_DUTY,
    fingerprint,
)
from cystore.layout.disk import (
    DISK_STRUCTS,
    INDEX_ENTRY,
    INDEX_HEADER,
    MAGIC,
    QUEUE_ENTRY,
    TOTAL_SIZE,
    Place,
    codec,
    field_of,
    record_store_timestamp,
)
from cystore.layout.ledger import FOREIGN_CONSTANTS, FOREIGN_STRUCTS
from cystore.layout.process_slot import (
    INCARNATION_BITS,
    PROCESS_BYTES_AT,
    PROCESS_SLOT_BITS,
    PROCESS_SLOT_BYTES,
    PROCESS_SLOT_FIELDS,
    PROCESS_SLOTS,
)
from cystore.layout.queue import QUEUE_SLOT_BYTES, QUEUE_SLOT_FIELDS
from cystore.layout.record import (
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    PROPERTIES,
    RECORD_MAGIC_BLANK,
    RECORD_MAGIC_CYSTORE,
    RECORD_MAGIC_ROCKETMQ,
    RECORD_PARTS,
)
from cystore.layout.shapes import (
    CACHE_LINE_BYTES,
    MUTEX_BYTES,
    PACKED_MUTEX_BYTES,
    TYPE_BYTES,
    Constants,
    DiskStruct,
    Field,
    Part,
    Shared,
)
from cystore.layout.sys_flags import IN_QUEUE, NOT_IN_INDEX, takes_index_entry, takes_queue_offset
from cystore.layout.topics import (
    DISCARDED_TOPIC,
    HALF_TOPIC,
    LMQ_PREFIX,
    OP_TOPIC,
    OWN_GROUPS,
    OWN_TOPICS,
    SCHEDULE_TOPIC,
    TAKEN_TOPICS,
    TRANSACTION_GROUP,
    refuse_own_topic,
)
from cystore.layout.version import LAYOUT_VERSION, RELEASE

CONSTANTS: Constants = {
    **record.CONSTANTS,
    **sys_flags.CONSTANTS,
    **topics.CONSTANTS,
    **queue.CONSTANTS,
    **index.CONSTANTS,
    **store_files.CONSTANTS,
}

BLANK_SIZE_MIN = CONSTANTS["BLANK_SIZE_MIN"][0]

__all__ = [
    "BLANK_SIZE_MIN",
    "CACHE_LINE_BYTES",
    "CONSTANTS",
    "CONTROL_BUCKETS",
    "CONTROL_BUCKETS_AT",
    "CONTROL_BYTES",
    "CONTROL_FIELDS",
    "CONTROL_LOCKS_AT",
    "CONTROL_MAGIC",
    "CONTROL_PROCESSES_AT",
    "CONTROL_QUEUES_AT",
    "DISCARDED_TOPIC",
    "DISK_STRUCTS",
    "DUTIES",
    "DUTIES_MAX",
    "DUTY_WORDS",
    "FLAGS",
    "FOREIGN_CONSTANTS",
    "FOREIGN_STRUCTS",
    "HALF_TOPIC",
    "HOST_V4_BYTES",
    "HOST_V6_BYTES",
    "INCARNATION_BITS",
    "INDEX_ENTRY",
    "INDEX_HEADER",
    "IN_QUEUE",
    "KEY_WORDS",
    "LATENCY_BUCKETS",
    "LAYOUT_VERSION",
    "LMQ_PREFIX",
    "LOCK_NAMES",
    "MAGIC",
    "MUTEX_BYTES",
    "MUTEX_NAMES",
    "NOT_IN_INDEX",
    "OP_TOPIC",
    "OWN_GROUPS",
    "OWN_TOPICS",
    "PACKED_MUTEX_BYTES",
    "PROCESS_BYTES_AT",
    "PROCESS_SLOTS",
    "PROCESS_SLOT_BITS",
    "PROCESS_SLOT_BYTES",
    "PROCESS_SLOT_FIELDS",
    "PROPERTIES",
    "QUEUE_ENTRY",
    "QUEUE_SLOT_BYTES",
    "QUEUE_SLOT_FIELDS",
    "RECORD_MAGIC_BLANK",
    "RECORD_MAGIC_CYSTORE",
    "RECORD_MAGIC_ROCKETMQ",
    "RECORD_PARTS",
    "RELEASE",
    "SCHEDULE_TOPIC",
    "TAKEN_TOPICS",
    "TOTAL_SIZE",
    "TRANSACTION_GROUP",
    "TYPE_BYTES",
    "WORDS_OF_DUTY",
    "DiskStruct",
    "Field",
    "Part",
    "Place",
    "Shared",
    "codec",
    "field_of",
    "fingerprint",
    "record_store_timestamp",
    "refuse_own_topic",
    "takes_index_entry",
    "takes_queue_offset",
]
