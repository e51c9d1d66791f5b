from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cystore._native.memory.atomics cimport load_u32
from cystore._native.layout cimport CONTROL_BUCKETS, CONTROL_BUCKETS_AT, CONTROL_QUEUES_AT, control_block, queue_entry


cdef inline uint32_t* control_buckets(control_block* block) noexcept nogil:
    return <uint32_t*>(<uint8_t*>block + CONTROL_BUCKETS_AT)


cdef inline queue_entry* control_slot(control_block* block, uint32_t slot) noexcept nogil:
    return <queue_entry*>(<uint8_t*>block + CONTROL_QUEUES_AT) + slot


cdef inline uint32_t queue_hash(const uint8_t* topic, int topic_len, int32_t queue_id) noexcept nogil:
    """FNV-1a over topic and queue id."""
    cdef uint32_t h = 2166136261u
    cdef int i
    for i in range(topic_len):
        h = (h ^ topic[i]) * 16777619u
    return (h ^ <uint32_t>queue_id) * 16777619u


cdef inline queue_entry* control_find_queue(control_block* block, const uint8_t* topic, int topic_len,
                                            int32_t queue_id) noexcept nogil:
    """The queue's slot, NULL when unknown. Takes no lock: a slot is filled before it is linked and never moves."""
    cdef uint32_t h = queue_hash(topic, topic_len, queue_id)
    cdef uint32_t link = load_u32(&control_buckets(block)[h & (CONTROL_BUCKETS - 1)])  # acquire; release in _link
    cdef uint32_t steps = 0
    cdef queue_entry* entry
    while link != 0 and link <= block.max_queues and steps <= block.max_queues:
        entry = control_slot(block, link - 1)
        if entry.hash == h and entry.queue_id == queue_id and entry.topic_bytes == <uint32_t>topic_len \
                and memcmp(&entry.topic[0], topic, topic_len) == 0:
            return entry
        link = load_u32(&entry.hash_next)
        steps += 1
    return NULL


# Adds a queue; the caller holds the append lock (or is alone). NULL when the memory for slots is used up.
cdef queue_entry* control_add_queue(control_block* block, const uint8_t* topic, int topic_len,
                                    int32_t queue_id) noexcept nogil
# Links the newest slot into its bucket if a kill prevented that. Under the append lock.
cdef void control_relink_newest(control_block* block) noexcept nogil
# The slot of this number, which must be published. Raises IndexError.
cdef queue_entry* checked_slot(control_block* block, int64_t slot) except NULL
