"""The control block's table of queues: a slot for each, found by its hash."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from cystore._native.memory.atomics cimport load_u32, store_u32
from cystore._native.layout cimport TOPIC_BYTES_MAX

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)


cdef void _link(control_block* block, uint32_t slot) noexcept nogil:
    cdef queue_entry* entry = control_slot(block, slot)
    cdef uint32_t* bucket = &control_buckets(block)[entry.hash & (CONTROL_BUCKETS - 1)]
    store_u32(&entry.hash_next, load_u32(bucket))
    failpoint("control.bucket_read")
    store_u32(bucket, slot + 1)  # release: publishes the slot; acquire in control_find_queue


cdef queue_entry* control_add_queue(control_block* block, const uint8_t* topic, int topic_len,
                                    int32_t queue_id) noexcept nogil:
    """Fills a slot, counts it, links it. A kill before the link leaves a slot that control_relink_newest links."""
    cdef uint32_t slot = block.queue_count
    cdef queue_entry* entry
    if slot >= load_u32(&block.queue_capacity) or slot >= block.max_queues or topic_len > <int>TOPIC_BYTES_MAX:
        return NULL
    entry = control_slot(block, slot)
    memset(entry, 0, sizeof(queue_entry))
    memcpy(&entry.topic[0], topic, topic_len)
    entry.topic_bytes = <uint32_t>topic_len
    entry.queue_id = queue_id
    entry.hash = queue_hash(topic, topic_len, queue_id)
    failpoint("control.queue_filled")
    store_u32(&block.queue_count, slot + 1)  # release: publishes the slot; acquire in walks over all slots (queue.pyx)
    failpoint("control.queue_counted")
    _link(block, slot)
    return entry


cdef void control_relink_newest(control_block* block) noexcept nogil:
    cdef uint32_t count = block.queue_count
    cdef queue_entry* entry
    if count == 0:
        return
    entry = control_slot(block, count - 1)
    if control_find_queue(block, <const uint8_t*>&entry.topic[0], <int>entry.topic_bytes, entry.queue_id) == NULL:
        _link(block, count - 1)


cdef queue_entry* checked_slot(control_block* block, int64_t slot) except NULL:
    if not 0 <= slot < min(load_u32(&block.queue_count), block.max_queues):
        raise IndexError(f"no queue slot {slot}")
    return control_slot(block, <uint32_t>slot)
