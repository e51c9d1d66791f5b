"""The properties of `Control`: which field of the control block each of them reads, and how it writes it.

`tools/layout_sources.py` makes the kernel `_native/memory/control_fields` of this table.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Write(Enum):
    """How a property writes its field."""

    NO = "it is read only"
    STORE = "a release store of the value"
    FORWARD = "the same; a value below the last one is refused"
    RAISE = "a method `raise_NAME`: the value, unless the last one is higher already; needs no lock"


class Access(NamedTuple):
    """One property, named as its field unless `name` says otherwise."""

    field: str
    write: Write = Write.NO
    doc: str = ""
    name: str = ""
    called: str = ""  # the name in the error for a value that would go back
    counts: str = ""  # the word that a write increments
    wakes: bool = False  # the write also wakes the sleepers on that word

    @property
    def property(self) -> str:
        return self.name or self.field


_NO, _STORE, _FORWARD, _RAISE = Write

CONTROL_ACCESS = (
    Access("wrote", _FORWARD, called="the wrote position"),
    Access("last_store_timestamp", _STORE, name="last_store_timestamp_ms"),
    Access(
        "last_record",
        _STORE,
        "Physical offset of the last record, -1 when there is none. Its end is never past the wrote position.",
    ),
    Access("appended", _NO, "The end of the log in the pool's buffers; unused without a pool."),
    Access("appended_record", _NO, "Physical offset of the last record below `appended`."),
    Access("pooled", _NO, "1: appends go to a pool of buffers."),
    Access("pool_buffers", _NO, "The number of buffers of the pool."),
    Access("append_seq"),
    Access("put_count", _NO, "Messages appended since the first attach."),
    Access("queue_count"),
    Access("queue_capacity"),
    Access("flushed", _FORWARD, called="the flushed position"),
    Access("flushed_ms", _STORE, "When the log was flushed last; monotonic ms."),
    Access("checkpointed", _STORE, "The flushed position when the checkpoint was synced last."),
    Access("checkpointed_ms", _STORE, "When that was; monotonic ms."),
    Access("queues_flushed_timestamp", _STORE, name="queues_flushed_timestamp_ms"),
    Access("queues_flushed_ms", _STORE, "When queues and index were flushed last; monotonic ms."),
    Access("index_flushed", _STORE),
    Access("offsets_saved", _STORE, "The log position that config/queueOffset.json has."),
    Access("offsets_saved_ms", _STORE, "When that file was written; monotonic ms."),
    Access("gathered", _STORE, "`put_count` when the last sync for waiting puts began."),
    Access("group_before", _STORE, "Puts that the last sync but one was for."),
    Access("group_last", _STORE, "Puts that the last sync was for."),
    Access("dispatched", _STORE, counts="dispatch_seq"),
    Access("dispatched_timestamp", _STORE, name="dispatched_timestamp_ms"),
    Access("index_base", _STORE, counts="index_seq"),
    Access("index_allocated", _STORE),
    Access("index_seq"),
    Access("allocated", _FORWARD, called="the allocated position", counts="segment_seq", wakes=True),
    Access("segment_seq"),
    Access("ready_base", _STORE),
    Access("min_physical_offset", _FORWARD, called="the log's minimum"),
    Access("followed", _STORE, "The log's minimum that all queues and the index follow."),
    Access("flags"),
    Access("failed_errno", _STORE),
    Access("manifest_seq", _STORE),
    Access("replicated", _RAISE, "The highest log position that a slave has reported."),
    Access(
        "replicas",
        _STORE,
        "How many slaves are connected. The process that serves them may have been killed.",
    ),
    Access("in_sync", _STORE, "Members of the in-sync set, this store too; 0 without an election."),
    Access("in_sync_needed", _STORE, "So many members acknowledge a replicated put."),
    Access("confirming", _STORE, "1: reads of this store end at `confirmed`. 0: at the end of the log."),
    Access("epoch", _STORE, "The epoch in which this store is the elected master; 0: it is none."),
    Access("lease_until_ms", _STORE, "CLOCK_BOOTTIME from which on replicated puts are refused."),
    Access(
        "confirmed",
        _RAISE,
        "Each member in sync has the log on its disk below this position: no failover takes it back.",
    ),
    Access("commit_log_file_bytes"),
    Access("consume_queue_file_bytes"),
    Access("max_hash_slot_num"),
    Access("max_index_num"),
    Access("max_queues"),
    Access("generation"),
)

# Fields of a queue's slot: `queue_NAME(slot)`, `set_queue_NAME(slot, value)`, `raise_queue_NAME(slot, value)`.
QUEUE_ACCESS = (
    Access("next"),
    Access("dispatched", _STORE),
    Access("minimum", _STORE),
    Access("minimum", _RAISE),
    Access("flushed", _STORE),
    Access("allocated", _STORE),
    Access(
        "put_bytes",
        _NO,
        "Bytes of records appended to a queue since the first attach.",
    ),
    Access(
        "removals",
        _NO,
        "Changes when the files of a queue are removed: a process that has them mapped must open them again.",
    ),
)
