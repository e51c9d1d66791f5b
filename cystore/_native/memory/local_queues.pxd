"""A table of queues that one process keeps for itself: the hash of topic and queue id finds a row.

The caller owns the rows, one array; each row begins with a `queue_key`. queue_table.pxd has the table of the control
block, which processes share and read without a lock.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from cystore._native.memory.queue_table cimport queue_hash

# The begin of a row.
cdef struct queue_key:
    uint8_t[128] topic
    int topic_len
    int32_t queue_id
    uint32_t hash
    uint32_t link               # number of the next row in the bucket + 1


cdef inline queue_key* _row(void* rows, size_t row_bytes, uint32_t number) noexcept nogil:
    return <queue_key*>(<uint8_t*>rows + number * row_bytes)


cdef inline uint32_t find_local_queue(void* rows, size_t row_bytes, const uint32_t* buckets, uint32_t mask,
                                      const uint8_t* topic, int topic_len, int32_t queue_id) noexcept nogil:
    """Number of the queue's row + 1, or 0. `mask`: the number of buckets, a power of two, less 1."""
    cdef uint32_t hash = queue_hash(topic, topic_len, queue_id)
    cdef uint32_t link = buckets[hash & mask]
    cdef queue_key* key
    while link:
        key = _row(rows, row_bytes, link - 1)
        if key.hash == hash and key.queue_id == queue_id and key.topic_len == topic_len \
                and memcmp(&key.topic[0], topic, topic_len) == 0:
            return link
        link = key.link
    return 0


cdef inline void fill_local_queue(queue_key* key, const uint8_t* topic, int topic_len, int32_t queue_id) noexcept nogil:
    """Fills the key of a row. A topic has at most 127 bytes."""
    memcpy(&key.topic[0], topic, topic_len)
    key.topic_len = topic_len
    key.queue_id = queue_id
    key.hash = queue_hash(topic, topic_len, queue_id)


cdef inline void link_local_queue(void* rows, size_t row_bytes, uint32_t* buckets, uint32_t mask,
                                  uint32_t number) noexcept nogil:
    """Puts a filled row into its bucket."""
    cdef queue_key* key = _row(rows, row_bytes, number)
    key.link = buckets[key.hash & mask]
    buckets[key.hash & mask] = number + 1
