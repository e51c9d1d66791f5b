from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_view cimport record_view
from cystore._native.record.window cimport log_window

cdef enum IndexStatus:
    INDEX_OK = 0
    INDEX_FULL = 1

# One index file in memory; its bytes reach to the end of its last entry.
cdef struct index_view:
    uint8_t* p
    uint32_t slots
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
    int64_t[QUERY_CANDIDATES] candidates
    int candidate_at
    int candidate_count
    int64_t wanted
    int64_t* found
    int64_t found_count
    int64_t room
    # The first places without an intact record that entries with the hash name, and the RecordStatus of each.
    int64_t[QUERY_DAMAGED_MAX] damaged
    int[QUERY_DAMAGED_MAX] damaged_status
    int damaged_count

cdef bint index_view_fits(const index_view* index, size_t length) noexcept nogil
cdef int32_t index_next_entry(const index_view* index) noexcept nogil
cdef int64_t index_entry_end(const index_view* index, int32_t number) noexcept nogil
# Seed of the hashes of all keys of a topic: the hash of "topic#".
cdef int32_t index_topic_seed(const uint8_t* topic, size_t length) noexcept nogil
cdef int32_t index_key_hash(int32_t seed, const uint8_t* key, size_t length) noexcept nogil
# A caller's time, limited so that sums do not overflow.
cdef int64_t index_time(int64_t ms) noexcept nogil
# The time field of an entry: seconds since the begin timestamp of its file.
cdef int32_t index_seconds(int64_t begin, int64_t store_timestamp) noexcept nogil
cdef void index_prefetch(const index_view* index, int32_t hash) noexcept nogil
cdef int index_put(index_view* index, int32_t hash, int64_t physical_offset, int64_t store_timestamp) noexcept nogil
cdef int32_t index_trim(index_view* index, int64_t physical_offset) noexcept nogil
cdef bint index_may_hold(const index_view* index, int64_t begin_ms, int64_t end_ms) noexcept nogil
cdef void index_walk_begin(const index_view* index, index_walk* walk) noexcept nogil
cdef int index_walk_next(const index_view* index, index_walk* walk, int64_t* offsets, int room) noexcept nogil
# Examines one entry of `walk`, which is not at its end.
cdef int index_walk_step(const index_view* index, index_walk* walk, int64_t* offset) noexcept nogil
# Fetches the next entry of a walk from memory.
cdef void index_walk_prefetch(const index_view* index, const index_walk* walk) noexcept nogil
cdef int index_query(const index_view* index, key_query* q, log_window* window) noexcept nogil
cdef bint index_key_matches(const record_view* v, const uint8_t* key, int key_len) noexcept nogil

# Raises ValueError if the file has not the length of an index file with that many slots and entries.
cdef index_view index_view_of(MappedFile file, uint32_t slots, uint32_t capacity) except *
