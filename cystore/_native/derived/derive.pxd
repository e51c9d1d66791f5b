"""What dispatch needs to know of a record that it has read: its queue and the seed of its keys' hashes. Records of one
queue often follow each other, so both are kept from record to record."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from cystore._native.derived.index cimport index_topic_seed
from cystore._native.layout cimport control_block, queue_entry
from cystore._native.memory.queue_table cimport control_find_queue, queue_hash
from cystore._native.record.record_view cimport record_view, same_text

cdef enum:
    KNOWN_QUEUES = 64               # power of two

# A queue of earlier records. Its slot has these numbers, too, but in a cache line that each append to it changes.
cdef struct known_queue:
    queue_entry* entry              # NULL: none
    uint32_t hash
    int32_t queue_id
    int topic_len

# What one thread keeps of the records that it has read.
cdef struct record_reader:
    control_block* block
    const int64_t* delay_ms
    int delay_levels
    bint with_index
    const uint8_t* seeded_topic     # the topic of `seed`, in the control block
    int seeded_topic_len
    int32_t seed
    known_queue* last_known         # that of the last record, or NULL
    known_queue[KNOWN_QUEUES] known     # by hash


cdef inline void reader_begin(record_reader* reader, control_block* block) noexcept nogil:
    """Before each run of records; what is kept is of one control block."""
    if reader.block != block:
        memset(&reader.known[0], 0, sizeof(reader.known))
        reader.block, reader.last_known = block, NULL
        reader.seeded_topic, reader.seeded_topic_len = NULL, 0


cdef inline bint _is_queue(const known_queue* known, const record_view* v) noexcept nogil:
    return known.queue_id == v.queue_id and known.topic_len == v.topic_len \
        and same_text(<const uint8_t*>&known.entry.topic[0], v.topic, v.topic_len)


cdef inline queue_entry* queue_of(record_reader* reader, const record_view* v) noexcept nogil:
    """The record's queue, NULL when it is not in the table. A look at the slot itself would fetch the line that appends
    change, and the next append would fetch it back."""
    cdef known_queue* known = reader.last_known
    cdef queue_entry* found
    cdef uint32_t hash
    if known != NULL and _is_queue(known, v):
        return known.entry
    hash = queue_hash(v.topic, v.topic_len, v.queue_id)
    known = &reader.known[hash & (KNOWN_QUEUES - 1)]
    if known.entry == NULL or known.hash != hash or not _is_queue(known, v):
        found = control_find_queue(reader.block, v.topic, v.topic_len, v.queue_id)
        if found == NULL:
            return NULL
        known.entry, known.hash, known.queue_id, known.topic_len = found, hash, v.queue_id, v.topic_len
    reader.last_known = known
    return known.entry


cdef inline int32_t seed_for(record_reader* reader, const record_view* v, queue_entry* queue) noexcept nogil:
    """The topic's part of the key hashes. It stays while records of one topic follow each other."""
    if reader.seeded_topic_len == v.topic_len and same_text(reader.seeded_topic, v.topic, v.topic_len):
        return reader.seed
    reader.seed = index_topic_seed(v.topic, v.topic_len)
    # The record may be unmapped before the next record is read. The queue's slot stays.
    reader.seeded_topic = <const uint8_t*>&queue.topic[0] if queue != NULL else NULL
    reader.seeded_topic_len = v.topic_len if queue != NULL else 0
    return reader.seed
