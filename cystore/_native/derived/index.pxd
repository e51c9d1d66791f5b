from libc.stdint cimport INT32_MAX, INT32_MIN, UINT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.layout cimport (
    INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_HEADER_NEXT_ENTRY_AT, INDEX_HEADER_USED_SLOTS_AT, INDEX_SLOT_BYTES,
    index_entry_key_hash, index_entry_physical_offset, index_entry_previous, index_entry_seconds,
    index_entry_set_key_hash, index_entry_set_physical_offset, index_entry_set_previous, index_entry_set_seconds,
    index_header_begin_timestamp, index_header_set_begin_physical_offset, index_header_set_begin_timestamp,
    index_header_set_end_physical_offset, index_header_set_end_timestamp, index_header_used_slots, load_be32, store_be64
)
from cystore._native.memory.atomics cimport (
    observe_be32, prefetch_for_read, prefetch_for_write, publish_be32, release_fence
)
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record cimport java_hash
from cystore._native.record.record_view cimport record_parts, record_view
from cystore._native.record.window cimport log_window

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)

cdef extern from *:
    ctypedef unsigned long long uint128_t "unsigned __int128"

cdef extern from * nogil:
    """
    /* RocketMQ's clock may step back between two records. A time range still finds entries that are this much out of
     * order. */
    #define CLOCK_STEP_MS ((int64_t)600000)
    /* The limit of times from callers; a larger time from a file is not used. So the sum of two times does not
     * overflow. */
    #define TIME_MAX_MS ((int64_t)1 << 61)
    """
    const int64_t CLOCK_STEP_MS
    const int64_t TIME_MAX_MS

cdef enum IndexStatus:
    INDEX_OK = 0
    INDEX_FULL = 1

# One index file in memory; its bytes reach to the end of its last entry.
cdef struct index_view:
    uint8_t* p
    uint32_t slots
    uint64_t slots_inverse  # 2^64 / slots, rounded up (0 for 1)
    uint32_t capacity       # entries, the unused entry 0 included

# A walk down a chain: `entry` is the next entry to examine, 0 at the end.
cdef struct index_walk:
    int32_t hash
    int32_t entry
    int64_t begin_ms
    int64_t end_ms

cdef enum QueryStatus:
    QUERY_DONE = 0          # the chain has ended
    QUERY_FULL = 1          # there is no room for another message
    QUERY_NEED_SEGMENT = 2  # the window does not have the segment of the record at `wanted`

cdef enum:
    QUERY_CANDIDATES = 16
    QUERY_DAMAGED_MAX = 32

# A query for the messages of one key. `found`: physical offsets, highest first, each once.
cdef struct key_query:
    const uint8_t* topic
    int topic_len
    const uint8_t* key      # NULL: every key with the hash
    int key_len
    index_walk walk
    int64_t end             # log position: records behind it, or that end behind it, are left out
    int64_t[QUERY_CANDIDATES] candidates
    int candidate_at
    int candidate_count
    int64_t wanted
    int64_t* found
    int64_t found_count
    int64_t room
    # The record that was found first, and its place.
    record_parts parts
    const uint8_t* start
    # The first places without an intact record that entries with the hash name, and the RecordStatus of each.
    int64_t[QUERY_DAMAGED_MAX] damaged
    int[QUERY_DAMAGED_MAX] damaged_status
    int damaged_count

cdef bint index_view_fits(const index_view* index, size_t length) noexcept nogil
# Seed of the hashes of all keys of a topic: the hash of "topic#".
cdef int32_t index_topic_seed(const uint8_t* topic, size_t length) noexcept nogil
# A caller's time, limited so that sums do not overflow.
cdef int64_t index_time(int64_t ms) noexcept nogil
cdef int32_t index_trim(index_view* index, int64_t physical_offset) noexcept nogil
cdef bint index_may_hold(const index_view* index, int64_t begin_ms, int64_t end_ms) noexcept nogil
cdef void index_walk_begin(const index_view* index, index_walk* walk) noexcept nogil
cdef int index_walk_next(const index_view* index, index_walk* walk, int64_t* offsets, int room) noexcept nogil
# Fetches the next entry of a walk from memory.
cdef void index_walk_prefetch(const index_view* index, const index_walk* walk) noexcept nogil
cdef int index_query(const index_view* index, key_query* q, log_window* window) noexcept nogil
cdef bint index_key_matches(const record_view* v, const uint8_t* key, int key_len) noexcept nogil

# Raises ValueError if the file has not the length of an index file with that many slots and entries.
cdef index_view index_view_of(MappedFile file, uint32_t slots, uint32_t capacity) except *


cdef inline void index_set_slots(index_view* index, uint32_t slots) noexcept nogil:
    index.slots = slots
    index.slots_inverse = UINT64_MAX // slots + 1 if slots else 0


cdef inline uint32_t index_slot_number(const index_view* index, int32_t hash) noexcept nogil:
    """hash modulo the number of slots, by two multiplications: a division takes longer. The lower half of the first
    product is the remainder as a part of 2^64 (Lemire, Kaser, Kurz: Faster remainder by direct computation, 2019)."""
    cdef uint64_t part = index.slots_inverse * <uint32_t>hash
    return <uint32_t>((<uint128_t>part * index.slots) >> 64)


cdef inline uint8_t* index_slot(const index_view* index, uint32_t number) noexcept nogil:
    return index.p + INDEX_HEADER_BYTES + <size_t>INDEX_SLOT_BYTES * number


cdef inline uint8_t* index_entry(const index_view* index, int32_t number) noexcept nogil:
    return (
        index.p + INDEX_HEADER_BYTES + <size_t>INDEX_SLOT_BYTES * index.slots
        + <size_t>INDEX_ENTRY_BYTES * <uint32_t>number
    )


cdef inline int32_t index_next_entry(const index_view* index) noexcept nogil:
    """Number of the next entry: the file's count, limited to 1 ... capacity."""
    # acquire; release in index_set_counts
    cdef int32_t number = <int32_t>observe_be32(index.p + INDEX_HEADER_NEXT_ENTRY_AT)
    if number < 1:
        return 1
    return number if <uint32_t>number <= index.capacity else <int32_t>index.capacity


cdef inline int64_t index_entry_end(const index_view* index, int32_t number) noexcept nogil:
    """Position in the file behind entry `number`."""
    return index_entry(index, number) + INDEX_ENTRY_BYTES - index.p


cdef inline int32_t index_hash(int32_t hash) noexcept nogil:
    """The absolute value of Java's hash of topic and key, 0 if it has none."""
    if hash == INT32_MIN:
        return 0
    return -hash if hash < 0 else hash


cdef inline int32_t index_key_hash(int32_t seed, const uint8_t* key, size_t length) noexcept nogil:
    return index_hash(java_hash(seed, key, length))


cdef inline void index_prefetch(const index_view* index, int32_t hash) noexcept nogil:
    prefetch_for_write(index_slot(index, index_slot_number(index, hash)))


cdef inline void index_slot_prefetch(const index_view* index, int32_t hash) noexcept nogil:
    """Fetches a hash's slot for a reader: the line stays with the dispatcher's processor, too."""
    prefetch_for_read(index_slot(index, index_slot_number(index, hash)))


cdef inline int32_t index_linked(int32_t number, int32_t below) noexcept nogil:
    """An entry number from a slot or an entry; 0 if it is impossible."""
    return number if 0 < number < below else 0


cdef inline void index_set_counts(index_view* index, uint32_t used_slots, int32_t next_entry) noexcept nogil:
    """Writes both counts in one store, so that they agree if the process dies."""
    release_fence()  # publishes the entry; acquire in index_next_entry
    store_be64(index.p + INDEX_HEADER_USED_SLOTS_AT, (<uint64_t>used_slots << 32) | <uint32_t>next_entry)


cdef inline int32_t index_seconds(int64_t begin, int64_t store_timestamp) noexcept nogil:
    """The time field of an entry: seconds since the begin timestamp of its file."""
    cdef int64_t seconds
    if begin <= 0 or store_timestamp <= begin:
        return 0
    seconds = (store_timestamp - begin) // 1000
    return <int32_t>seconds if seconds < INT32_MAX else INT32_MAX


cdef inline int index_put(index_view* index, int32_t hash, uint32_t slot_number, int64_t physical_offset,
                          int64_t store_timestamp) noexcept nogil:
    """Enters a key into its slot (`index_slot_number`); INDEX_FULL when there is no room. The entry's bytes must be
    allocated."""
    cdef int32_t number = index_next_entry(index)
    cdef uint8_t* slot
    cdef uint8_t* entry
    cdef int32_t previous
    if <uint32_t>number >= index.capacity:
        return INDEX_FULL
    slot = index_slot(index, slot_number)
    entry = index_entry(index, number)
    previous = index_linked(<int32_t>load_be32(slot), number)
    index_header_set_end_physical_offset(index.p, physical_offset)
    index_header_set_end_timestamp(index.p, store_timestamp)
    failpoint("index.end_moved")
    release_fence()
    index_entry_set_key_hash(entry, hash)
    index_entry_set_physical_offset(entry, physical_offset)
    # The seconds of the first entry count from the previous file's end, which the begin timestamp still holds.
    index_entry_set_seconds(entry, index_seconds(index_header_begin_timestamp(index.p), store_timestamp))
    index_entry_set_previous(entry, previous)
    if number == 1:
        index_header_set_begin_physical_offset(index.p, physical_offset)
        index_header_set_begin_timestamp(index.p, store_timestamp)
    failpoint("index.entry_written")
    index_set_counts(index, <uint32_t>index_header_used_slots(index.p) + (previous == 0), number + 1)
    failpoint("index.counted")
    # release: publishes the entry and the count; acquire in index_walk_begin
    publish_be32(slot, <uint32_t>number)
    failpoint("index.linked")
    return INDEX_OK


cdef inline int index_walk_step(const index_view* index, index_walk* walk, int64_t* offset) noexcept nogil:
    """Examines one entry of a walk that is not at its end, and moves to the next. Returns 1 and sets `offset` if the
    entry has the hash and its time may lie in the range.

    The time of an entry is exact to a second. It is unknown for the first entry of a file and for an entry at or
    before the file's begin. So a skipped entry is outside of the range, but a returned one may be outside too.
    """
    cdef int64_t begin = index_header_begin_timestamp(index.p)
    cdef int64_t earliest
    cdef int32_t number = walk.entry
    cdef const uint8_t* entry = index_entry(index, number)
    cdef int32_t seconds = index_entry_seconds(entry)
    walk.entry = index_linked(index_entry_previous(entry), number)
    if number > 1 and 0 < seconds < INT32_MAX and 0 < begin < TIME_MAX_MS:
        earliest = begin + <int64_t>seconds * 1000
        if earliest + 999 < walk.begin_ms - CLOCK_STEP_MS:
            walk.entry = 0
            return 0
        if earliest > walk.end_ms or earliest + 999 < walk.begin_ms:
            return 0
    if index_entry_key_hash(entry) != walk.hash:
        return 0
    offset[0] = index_entry_physical_offset(entry)
    return 1
