"""The first step of dispatch: reads and verifies a few records, and fetches the hash slots of their keys from memory
meanwhile. dispatch.pyx then writes their entries."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cystore._native.derived.dispatch cimport (
    DISPATCH_DAMAGED, DISPATCH_DONE, DISPATCH_NEED_QUEUE, DISPATCH_NEED_SEGMENT, GATHER_BYTES, KNOWN_QUEUES,
    PENDING_RECORDS, dispatch_state, known_queue, pending_key, pending_record
)
from cystore._native.derived.index cimport index_key_hash, index_slot, index_slot_number, index_topic_seed
from cystore._native.filters.bitmap cimport bitmap_of
from cystore._native.layout cimport queue_entry, takes_index_entry, takes_queue_offset
from cystore._native.memory.atomics cimport prefetch_for_write
from cystore._native.memory.queue_table cimport control_find_queue, control_slot, queue_hash
from cystore._native.record.property_read cimport derive_begin, derive_next_key, derived, light_of
from cystore._native.record.record_read cimport record_at, walk_begin
from cystore._native.record.record_view cimport (
    RECORD_BAD_LENGTH, RECORD_BLANK, RECORD_OK, record_view, same_text
)


cdef inline void _add_key(dispatch_state* d, pending_record* r, const uint8_t* key, size_t length) noexcept nogil:
    cdef pending_key* k = &d.keys[r.first_key + r.key_count]
    k.hash = index_key_hash(d.seed, key, length)
    r.key_count += 1
    if d.index.p != NULL:
        k.slot = index_slot_number(&d.index, k.hash)
        prefetch_for_write(index_slot(&d.index, k.slot))


cdef inline void _read_properties(dispatch_state* d, pending_record* r, const record_view* v,
                                  bint with_keys) noexcept nogil:
    """Reads the tags code and the key hashes."""
    cdef derived found
    cdef const uint8_t* key
    cdef size_t length
    derive_begin(v, d.delay_ms, d.delay_levels, &found)
    r.tags_code = found.tags_code
    r.is_light = light_of(v, &found.light, &found.light_offsets, &r.light)
    while with_keys and derive_next_key(&found, &key, &length):
        _add_key(d, r, key, length)


cdef inline bint _is_queue(const known_queue* known, const record_view* v) noexcept nogil:
    return known.queue_id == v.queue_id and known.topic_len == v.topic_len \
        and same_text(<const uint8_t*>&known.entry.topic[0], v.topic, v.topic_len)


cdef inline queue_entry* _queue_of(dispatch_state* d, const record_view* v) noexcept nogil:
    """Records of one queue often follow each other. A look at the slot itself would fetch the line that appends
    change, and the next append would fetch it back."""
    cdef known_queue* known = d.last_known
    cdef queue_entry* found
    cdef uint32_t hash
    if known != NULL and _is_queue(known, v):
        return known.entry
    hash = queue_hash(v.topic, v.topic_len, v.queue_id)
    known = &d.known[hash & (KNOWN_QUEUES - 1)]
    if known.entry == NULL or known.hash != hash or not _is_queue(known, v):
        found = control_find_queue(d.block, v.topic, v.topic_len, v.queue_id)
        if found == NULL:
            return NULL
        known.entry, known.hash, known.queue_id, known.topic_len = found, hash, v.queue_id, v.topic_len
    d.last_known = known
    return known.entry


cdef inline void _seed_for(dispatch_state* d, const record_view* v, queue_entry* queue) noexcept nogil:
    """Sets `seed`, the topic's part of the key hashes. It stays while records of one topic follow each other."""
    if d.seeded_topic_len == v.topic_len and memcmp(d.seeded_topic, v.topic, v.topic_len) == 0:
        return
    d.seed = index_topic_seed(v.topic, v.topic_len)
    # The record may be unmapped before the next record is read. The queue's slot stays.
    d.seeded_topic = <const uint8_t*>&queue.topic[0] if queue != NULL else NULL
    d.seeded_topic_len = v.topic_len if queue != NULL else 0


cdef inline void _add_bitmap(dispatch_state* d, pending_record* r, const record_view* v) noexcept nogil:
    """The bitmap of the record's unit, if its topic has filters."""
    cdef uint8_t* to
    if d.filters == NULL or r.queue == NULL:
        return
    to = d.bitmaps + d.pending_count * d.filters.bitmap_bytes
    if bitmap_of(d.filters, v.topic, v.topic_len, v.properties, v.properties_len, to):
        r.bitmap = to


cdef inline int gather(dispatch_state* d) noexcept nogil:
    """Parses and verifies records from `position` on into `pending`. The status says why it stopped; the caller handles
    it after the records in `pending`.

    The checksum is verified first: a wrong queue offset would turn later, intact records into holes."""
    cdef record_view v
    cdef pending_record* r
    cdef int64_t at = d.position
    cdef int64_t end = min(d.end, at + <int64_t>GATHER_BYTES)
    cdef int keys = 0
    cdef int status
    cdef const uint8_t* p
    d.pending_count = 0
    walk_begin(&v)
    while d.pending_count < PENDING_RECORDS and keys <= PENDING_RECORDS * 8:
        if at >= end:
            return DISPATCH_DONE
        if not d.segment.base <= at < d.segment.end:
            return DISPATCH_NEED_SEGMENT
        p = d.segment.address + (at - d.segment.base)
        status = record_at(p, <size_t>(min(d.segment.end, d.wrote) - at), at, d.segment.end, True, &v)
        if status == RECORD_BLANK and d.segment.end > d.wrote:
            status = RECORD_BAD_LENGTH
        if status != RECORD_OK and status != RECORD_BLANK:
            d.detail = status
            return DISPATCH_DAMAGED
        r = &d.pending[d.pending_count]
        r.position = at
        r.end = at + v.total_size
        r.queue = NULL
        r.first_key = keys
        r.key_count = 0
        r.is_light = False
        r.bitmap = NULL
        if status == RECORD_OK:
            r.store_timestamp = v.store_timestamp
            r.queue_offset = v.queue_offset
            r.queue = _queue_of(d, &v)
            if r.queue != NULL:
                r.slot = <uint32_t>(r.queue - control_slot(d.block, 0))
            elif takes_queue_offset(v.sys_flag):
                return DISPATCH_NEED_QUEUE
            if d.with_index and takes_index_entry(v.sys_flag):
                _seed_for(d, &v, r.queue)
                _read_properties(d, r, &v, True)
                keys += r.key_count
            else:
                _read_properties(d, r, &v, False)
            if not takes_queue_offset(v.sys_flag):
                r.queue = NULL
            _add_bitmap(d, r, &v)
        else:
            r.store_timestamp = 0
        d.pending_count += 1
        at = r.end
    return DISPATCH_DONE
