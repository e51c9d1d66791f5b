"""The state of a dispatcher, and its first step: to read and verify a few records, and to fetch the hash slots of their
keys from memory meanwhile. dispatch.pyx then writes their entries."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.derived.ahead cimport (
    NO_QUEUE, ahead_begin, ahead_entry, ahead_record, ring_ahead
)
from cystore._native.derived.derive cimport queue_of, record_reader, seed_for
from cystore._native.derived.index cimport index_hash, index_slot, index_slot_number, index_view
from cystore._native.filters.bitmap cimport bitmap_of, filter_table
from cystore._native.layout cimport control_block, queue_entry, takes_index_entry, takes_queue_offset
from cystore._native.memory.atomics cimport load_i64, load_u32, prefetch_for_write, store_i64
from cystore._native.memory.locks cimport lock_owner
from cystore._native.memory.queue_table cimport control_slot
from cystore._native.record.property_read cimport derive_begin, derive_next_hash, derived, light_of, light_queues
from cystore._native.record.record_read cimport fetch_ahead, record_at, walk_begin
from cystore._native.record.record_view cimport RECORD_BAD_LENGTH, RECORD_BLANK, RECORD_OK, record_view
from cystore._native.record.window cimport segment_view

cdef enum DispatchStatus:
    DISPATCH_DONE = 0               # `end` is reached
    DISPATCH_NEED_SEGMENT = 1       # the log file that holds `position`
    DISPATCH_NEED_QUEUE = 2         # a queue of the record at `position` is not in the table
    DISPATCH_NEED_GAP = 3           # hole entries in queue `slot` up to queue offset `wanted`
    DISPATCH_NEED_QUEUE_FILE = 4    # the file of queue `slot` that holds position `wanted`
    DISPATCH_NEED_QUEUE_SPACE = 5   # space at position `wanted` of queue `slot`
    DISPATCH_NEED_EXT_FILE = 6      # the extended file of queue `slot` for the next unit
    DISPATCH_NEED_EXT_SPACE = 7     # space for that unit
    DISPATCH_NEED_INDEX_FILE = 8    # an index file with a free entry
    DISPATCH_NEED_INDEX_SPACE = 9   # space up to position `wanted` of the index file
    DISPATCH_DAMAGED = 10           # the record at `position` is not valid: `detail` is its RecordStatus

# The files of one queue that dispatch writes. Positions count from the start of the queue, in bytes.
cdef struct queue_files:
    uint8_t* address                # NULL: not mapped
    int64_t base
    int64_t end
    uint32_t removals               # of the queue's slot at `use_queue`; if it changes, the file was removed
    uint64_t used                   # round of the last write
    uint8_t* ext_address            # NULL: not mapped
    int64_t ext_base
    int64_t ext_end
    int64_t ext_next                # where the next unit goes
    int64_t ext_allocated

# A parsed record whose entries are not written yet.
cdef struct pending_record:
    int64_t position
    int64_t end
    int64_t queue_offset
    int64_t tags_code
    int64_t store_timestamp
    queue_entry* queue              # NULL: the record belongs to no queue
    uint32_t slot
    int first_key
    int key_count
    uint8_t* bitmap             # of its extended unit; NULL: none
    bint is_light               # the record is in the queues of `light` too
    light_queues light

# A key of such a record.
cdef struct pending_key:
    int32_t hash
    uint32_t slot                   # its number in the index file, if there is one

cdef enum:
    GATHER_BYTES = 1048576          # of log in `pending`; some 3 ms
    PENDING_RECORDS = 32            # parsed ahead, to prefetch the hash slots of their keys
    KEYS_MAX = 16384                # in one record: a key and its blank take two of 32,767 bytes

# The state of one dispatcher. Its process uses it under the dispatch lock.
cdef struct dispatch_state:
    control_block* block
    const lock_owner* me            # of a turn's handle
    record_reader reader
    segment_view segment
    index_view index                # p is NULL while there is none
    int64_t index_allocated
    queue_files* queues             # by slot
    uint32_t queue_count
    uint64_t round
    bint with_ext
    const filter_table* filters     # NULL: units have no bitmaps
    uint8_t* bitmaps                # room for one bitmap for each pending record
    int64_t end                     # a record that begins here or later is not dispatched
    int64_t wrote
    int64_t until_ns                # monotonic time at which the run ends after a few records more
    int64_t position
    int keys_done                   # keys of the record at `position` that are in the index
    int part                        # the queue that the status is about: 0 is the record's own, its light ones follow
    # The record there has its entries in its own queue and in its first `left_out_part` light queues, or was left out
    # of them.
    int64_t left_out_at
    int left_out_part
    uint32_t slot
    int64_t wanted
    int detail
    # End of this process's last turn. If it is not `dispatched`, another process has dispatched since.
    int64_t stopped_at
    int64_t mapped_index_seq        # index_seq at `use_index`; -1: `use_index` has to come first
    int64_t sound_until             # begin of the first damaged range behind the last turn,
    int64_t sound_seq               # in the manifest with this sequence number
    int pending_count
    pending_record[PENDING_RECORDS] pending
    pending_key[KEYS_MAX + PENDING_RECORDS * 8] keys
    ring_ahead ahead


cdef inline void _add_key(dispatch_state* d, pending_record* r, int32_t hash) noexcept nogil:
    cdef pending_key* k = &d.keys[r.first_key + r.key_count]
    k.hash = hash
    r.key_count += 1
    if d.index.p != NULL:
        k.slot = index_slot_number(&d.index, k.hash)
        prefetch_for_write(index_slot(&d.index, k.slot))


cdef inline void _read_properties(dispatch_state* d, pending_record* r, const record_view* v,
                                  bint with_keys) noexcept nogil:
    """Reads the tags code and the key hashes."""
    cdef derived found
    cdef int32_t hash
    derive_begin(v, d.reader.delay_ms, d.reader.delay_levels, &found)
    r.tags_code = found.tags_code
    r.is_light = light_of(v, &found.light, &found.light_offsets, &r.light)
    while with_keys and derive_next_hash(&found, d.reader.seed, &hash):
        _add_key(d, r, index_hash(hash))


cdef inline void _add_bitmap(dispatch_state* d, pending_record* r, const record_view* v) noexcept nogil:
    """The bitmap of the record's unit, if its topic has filters."""
    cdef uint8_t* to
    if d.filters == NULL or r.queue == NULL:
        return
    to = d.bitmaps + d.pending_count * d.filters.bitmap_bytes
    if bitmap_of(d.filters, v.topic, v.topic_len, v.properties, v.properties_len, to):
        r.bitmap = to


cdef inline void _take_ahead(dispatch_state* d, pending_record* r, const ahead_record* entry) noexcept nogil:
    """A record that was read ahead."""
    cdef int n
    r.store_timestamp, r.queue_offset, r.tags_code = entry.store_timestamp, entry.queue_offset, entry.tags_code
    if entry.slot != <uint32_t>NO_QUEUE:
        r.slot, r.queue = entry.slot, control_slot(d.block, entry.slot)
    for n in range(entry.key_count):
        _add_key(d, r, entry.key_hashes[n])


cdef inline int gather(dispatch_state* d) noexcept nogil:
    """Parses and verifies records from `position` on into `pending`. The status says why it stopped; the caller handles
    it after the records in `pending`.

    The checksum is verified first: a wrong queue offset would turn later, intact records into holes."""
    cdef record_view v
    cdef pending_record* r
    cdef ring_ahead* ring = &d.ahead
    cdef const ahead_record* entry
    cdef int64_t at = d.position, fetched = 0  # in the segment
    cdef int64_t end = min(d.end, at + <int64_t>GATHER_BYTES)
    cdef int keys = 0
    cdef int status
    cdef const uint8_t* p
    cdef uint32_t run = load_u32(&ring.run)
    cdef int64_t written = load_i64(&ring.written)  # acquire; release in ahead.pxd: read_ahead
    cdef int64_t number = ahead_begin(ring, at, written, run)
    d.pending_count = 0
    walk_begin(&v)
    while d.pending_count < PENDING_RECORDS and keys <= PENDING_RECORDS * 8:
        if at >= end:
            return DISPATCH_DONE
        if not d.segment.base <= at < d.segment.end:
            return DISPATCH_NEED_SEGMENT
        r = &d.pending[d.pending_count]
        r.position = at
        r.queue = NULL
        r.first_key = keys
        r.key_count = 0
        r.is_light = False
        r.bitmap = NULL
        entry = NULL
        if number < written and ahead_entry(ring, number).position == at:
            entry = ahead_entry(ring, number)
            number += 1
        elif number == written and ring.records != NULL:
            store_i64(&ring.missed, at)
        if entry != NULL and entry.key_count >= 0 and d.filters == NULL \
                and at + entry.size <= min(d.segment.end, d.wrote):
            _take_ahead(d, r, entry)
            r.end = at + entry.size
            keys += r.key_count
            d.pending_count += 1
            at = r.end
            continue
        p = d.segment.address + (at - d.segment.base)
        fetched = fetch_ahead(d.segment.address, at - d.segment.base, fetched,
                              min(d.segment.end, d.wrote) - d.segment.base)
        status = record_at(p, <size_t>(min(d.segment.end, d.wrote) - at), at, d.segment.end, entry == NULL, &v)
        if status == RECORD_BLANK and d.segment.end > d.wrote:
            status = RECORD_BAD_LENGTH
        if status != RECORD_OK and status != RECORD_BLANK:
            d.detail = status
            return DISPATCH_DAMAGED
        r.end = at + v.total_size
        if status == RECORD_OK:
            r.store_timestamp = v.store_timestamp
            r.queue_offset = v.queue_offset
            r.queue = queue_of(&d.reader, &v)
            if r.queue != NULL:
                r.slot = <uint32_t>(r.queue - control_slot(d.block, 0))
            elif takes_queue_offset(v.sys_flag):
                return DISPATCH_NEED_QUEUE
            if d.reader.with_index and takes_index_entry(v.sys_flag):
                seed_for(&d.reader, &v, r.queue)
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
