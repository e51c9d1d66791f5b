"""Records that a second thread has read ahead of a long dispatch: a ring that it fills and the dispatcher empties.

The log below its end does not change while it is dispatched, so what was read stays right. An entry is for a record at
one position; the dispatcher takes it when it comes to that position, and reads all other records itself.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.time cimport nanosleep, timespec

from cystore._native.derived.derive cimport queue_of, reader_begin, record_reader, seed_for
from cystore._native.derived.index cimport index_hash
from cystore._native.layout cimport (
    RECORD_SIZE_MIN, control_block, load_be32, queue_entry, takes_index_entry, takes_queue_offset
)
from cystore._native.memory.atomics cimport load_i64, load_u32, store_i64, store_u32
from cystore._native.memory.queue_table cimport control_slot
from cystore._native.record.property_read cimport derive_begin, derive_next_hash, derived
from cystore._native.record.record_read cimport fetch_ahead, record_at, walk_begin
from cystore._native.record.record_view cimport RECORD_BLANK, RECORD_OK, record_view
from cystore._native.record.window cimport segment_view

cdef enum:
    AHEAD_RECORDS = 16384   # power of two
    AHEAD_KEYS = 5          # of one record; the dispatcher reads a record with more itself
    AHEAD_BYTES = 4194304   # of log, read and not dispatched yet
    AHEAD_STEP = 16384      # of log between two looks at the dispatcher
    AHEAD_SKIP = 262144     # of log that a dispatcher reads itself which has no entries left
    AHEAD_PAUSE_NS = 100000
    NO_QUEUE = 0xFFFFFFFF

# A record whose checksum is right.
cdef struct ahead_record:
    int64_t position
    int64_t queue_offset
    int64_t tags_code
    int64_t store_timestamp
    int32_t size
    int32_t key_count               # -1: the dispatcher reads the record itself, without its checksum
    uint32_t slot                   # of its queue; NO_QUEUE: it belongs to none
    uint32_t run                    # of `ring_ahead`
    int32_t[AHEAD_KEYS] key_hashes

# What each thread writes has cache lines of its own.
cdef struct ring_ahead:
    ahead_record* records           # NULL: no thread has read ahead yet
    record_reader reader
    bint is_taken                   # there is such a thread
    int64_t ends                    # not 0: that thread shall end
    uint8_t[64] before_written
    uint32_t run                    # entries of other runs do not count
    int64_t written                 # number of entries ever
    int64_t until                   # end of a record, or of a segment
    uint8_t[64] behind_written
    int64_t taken                   # number of entries that the dispatcher does not need any more
    int64_t missed                  # position of the last record that it read itself, -1: none
    uint8_t[64] behind_taken


cdef inline ahead_record* ahead_entry(const ring_ahead* ring, int64_t number) noexcept nogil:
    return &ring.records[number & (AHEAD_RECORDS - 1)]


cdef inline int64_t ahead_begin(ring_ahead* ring, int64_t position, int64_t written, uint32_t run) noexcept nogil:
    """The number of the first entry at `position` or behind it. The dispatcher is there: entries before it are
    free."""
    cdef int64_t number = ring.taken
    while number < written and (ahead_entry(ring, number).run != run or ahead_entry(ring, number).position < position):
        number += 1
    if number != ring.taken:
        store_i64(&ring.taken, number)  # release: the entries may be overwritten; acquire in _has_room
    return number


cdef inline void _write_ahead(ring_ahead* ring, ahead_record* entry, const record_view* v, int64_t at) noexcept nogil:
    cdef record_reader* reader = &ring.reader
    cdef queue_entry* queue = queue_of(reader, v)
    cdef derived found
    cdef int32_t hash
    entry.position, entry.size, entry.run = at, v.total_size, ring.run
    entry.queue_offset, entry.store_timestamp = v.queue_offset, v.store_timestamp
    entry.slot = <uint32_t>(queue - control_slot(reader.block, 0)) if queue != NULL else NO_QUEUE
    entry.key_count = 0
    if queue == NULL and takes_queue_offset(v.sys_flag):
        entry.key_count = -1
        return
    derive_begin(v, reader.delay_ms, reader.delay_levels, &found)
    entry.tags_code = found.tags_code
    if found.light.value_len and found.light_offsets.value_len:
        entry.key_count = -1
        return
    if reader.with_index and takes_index_entry(v.sys_flag):
        seed_for(reader, v, queue)
        while derive_next_hash(&found, reader.seed, &hash):
            if entry.key_count == AHEAD_KEYS:
                entry.key_count = -1
                return
            entry.key_hashes[entry.key_count] = index_hash(hash)
            entry.key_count += 1
    if not takes_queue_offset(v.sys_flag):
        entry.slot = NO_QUEUE


cdef inline bint _has_room(const ring_ahead* ring, const control_block* block, int64_t at,
                           int64_t written) noexcept nogil:
    # acquire; release in ahead_begin
    return at - load_i64(&block.dispatched) <= AHEAD_BYTES and written - load_i64(&ring.taken) < AHEAD_RECORDS


cdef inline int64_t _skipped(const segment_view* segment, int64_t at, int64_t behind, int64_t end) noexcept nogil:
    """The first record at `behind` or later, by the lengths of those before it; nothing depends on their being
    right."""
    cdef int64_t size
    while at < behind and at + <int64_t>RECORD_SIZE_MIN <= end:
        size = <int32_t>load_be32(segment.address + (at - segment.base))
        if not <int64_t>RECORD_SIZE_MIN <= size <= end - at:
            break
        at += size
    return at


cdef inline int64_t read_ahead(ring_ahead* ring, control_block* block, const segment_view* segment, int64_t at,
                               int64_t end) noexcept nogil:
    """Reads the segment's records from `at` on, not far ahead of the dispatcher, until it has no more of them, meets
    damage or has to end. Returns the end of the last one, or the segment's end at its blank.

    A dispatcher that has taken all entries reads records itself. It gets the next ones for itself alone, so that both
    threads have work and none reads what the other one reads."""
    cdef timespec pause
    cdef record_view v
    cdef int64_t look_at = at, looked_at = at, missed, fetched = 0  # in the segment
    cdef int64_t written = ring.written
    cdef int status
    pause.tv_sec, pause.tv_nsec = 0, AHEAD_PAUSE_NS
    walk_begin(&v)
    reader_begin(&ring.reader, block)
    end = min(end, segment.end)
    while at < end:
        if at >= look_at or written - load_i64(&ring.taken) >= AHEAD_RECORDS:
            store_i64(&ring.written, written)  # release: publishes entries; acquire in gather.pxd: gather
            store_i64(&ring.until, at)
            while not _has_room(ring, block, at, written) and not load_i64(&ring.ends):
                nanosleep(&pause, NULL)
            if load_i64(&ring.ends):
                return at
            missed = load_i64(&ring.missed)
            if missed >= looked_at:
                at = _skipped(segment, min(max(at, missed), end), missed + AHEAD_SKIP, end)
                walk_begin(&v)  # the record before it was not read
                if at == end:
                    break
            looked_at, look_at = at, at + AHEAD_STEP
        fetched = fetch_ahead(segment.address, at - segment.base, fetched, end - segment.base)
        status = record_at(segment.address + (at - segment.base), <size_t>(end - at), at, segment.end, True, &v)
        if status == RECORD_BLANK and end == segment.end:  # in a file that is not full it is damage, as in `gather`
            at = segment.end
        elif status == RECORD_OK:
            _write_ahead(ring, ahead_entry(ring, written), &v, at)
            written += 1
            at += v.total_size
        else:
            break
    store_i64(&ring.written, written)  # release, as above
    store_i64(&ring.until, at)
    return at
