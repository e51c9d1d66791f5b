"""Index files in memory: enters keys, walks the chain of a key, removes the newest entries.

Publication order of an entry: the file's end (a repair reads it), the entry's bytes, the count, the slot. If the
process dies in between, the entry is not counted, or it is counted and in no chain. No chain ever leads to bytes that
were not written. `index_trim` removes the entries at or behind a log position, which makes dispatch repeatable.

The code trusts no number from a file: it checks entry numbers against the count, and a chain must go to lower numbers,
so a cyclic chain ends. Source of the format: IndexFile and IndexHeader of RocketMQ 4.9.3.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cystore._native.layout cimport (
    INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, index_entry_key_hash, index_entry_physical_offset,
    index_entry_previous, index_header_begin_timestamp, index_header_end_timestamp,
    index_header_used_slots, load_be32, takes_index_entry
)
from cystore._native.memory.atomics cimport observe_be32, prefetch_for_read, publish_be32
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.property_read cimport key_next, known_properties, read_known
from cystore._native.record.record cimport java_hash
from cystore._native.record.record_read cimport parts_of, record_intact
from cystore._native.record.record_view cimport RECORD_BAD_CHECKSUM, RECORD_OK, record_view
from cystore._native.record.window cimport (
    WINDOW_BEYOND, WINDOW_GONE, WINDOW_NEED_SEGMENT, log_window, record_expired, window_prefetch, window_record
)

cdef int64_t index_time(int64_t ms) noexcept nogil:
    return max(-TIME_MAX_MS, min(ms, TIME_MAX_MS))


cdef bint index_view_fits(const index_view* index, size_t length) noexcept nogil:
    """Whether a file of `length` bytes holds that many slots and entries. Then no smaller number leads outside."""
    return (
        0 < index.slots <= <uint32_t>INT32_MAX
        and 1 < index.capacity <= <uint32_t>INT32_MAX
        and INDEX_HEADER_BYTES + <size_t>INDEX_SLOT_BYTES * index.slots
        + <size_t>INDEX_ENTRY_BYTES * index.capacity == length
    )


cdef int32_t index_topic_seed(const uint8_t* topic, size_t length) noexcept nogil:
    return java_hash(java_hash(0, topic, length), <const uint8_t*>b"#", 1)


cdef int32_t index_trim(index_view* index, int64_t physical_offset) noexcept nogil:
    """Removes the newest entries that point at or past `physical_offset`; returns how many entries remain.

    If the process dies half-way, a repetition removes the rest: each slot is set back before the count, and a slot
    that no longer names its entry is not changed. The caller repairs the end fields of the header.
    """
    cdef int32_t number = index_next_entry(index) - 1
    cdef uint8_t* slot
    cdef uint8_t* entry
    cdef int32_t previous
    while number > 0:
        entry = index_entry(index, number)
        if index_entry_physical_offset(entry) < physical_offset:
            break
        previous = index_linked(index_entry_previous(entry), number)
        slot = index_slot(index, index_slot_number(index, index_entry_key_hash(entry)))
        if <int32_t>load_be32(slot) == number:
            publish_be32(slot, <uint32_t>previous)
        failpoint("index.unlinked")
        index_set_counts(index, <uint32_t>index_header_used_slots(index.p) - (previous == 0), number)
        number -= 1
    return number


cdef bint index_may_hold(const index_view* index, int64_t begin_ms, int64_t end_ms) noexcept nogil:
    """Whether the file may have entries from a range of store timestamps. If its end is before its begin, the clock
    was wrong, and the file may have any."""
    if index_header_end_timestamp(index.p) < index_header_begin_timestamp(index.p):
        return True
    return index_header_end_timestamp(index.p) >= begin_ms - CLOCK_STEP_MS \
        and index_header_begin_timestamp(index.p) <= end_ms + CLOCK_STEP_MS


cdef void index_walk_begin(const index_view* index, index_walk* walk) noexcept nogil:
    """Sets `walk.entry` to the newest entry of the chain of `walk.hash`."""
    # acquire; release in index_put, index_trim
    cdef int32_t newest = <int32_t>observe_be32(index_slot(index, index_slot_number(index, walk.hash)))
    # The slot is read before the count, so an entry that it names is below the count.
    walk.entry = index_linked(newest, index_next_entry(index))


cdef int index_walk_next(const index_view* index, index_walk* walk, int64_t* offsets, int room) noexcept nogil:
    """Puts the next entries of the hash whose time may lie in the range into `offsets`, newest first; returns how
    many."""
    cdef int found = 0
    while walk.entry != 0 and found < room:
        found += index_walk_step(index, walk, offsets + found)
    return found


cdef void index_walk_prefetch(const index_view* index, const index_walk* walk) noexcept nogil:
    if walk.entry != 0:
        prefetch_for_read(index_entry(index, walk.entry))


cdef bint index_key_matches(const record_view* v, const uint8_t* key, int key_len) noexcept nogil:
    """Whether the key is the record's unique key or one of its keys, which single spaces separate."""
    cdef known_properties known
    cdef const uint8_t* at
    cdef const uint8_t* found
    cdef size_t length
    read_known(v, &known)
    if key_len > 0 and known.unique.value_len == key_len and memcmp(known.unique.value, key, key_len) == 0:
        return True
    at = known.keys.value
    while key_next(&at, known.keys.value + known.keys.value_len, &found, &length):
        if length == <size_t>key_len and memcmp(found, key, key_len) == 0:
            return True
    return False


cdef inline void _add_found(key_query* q, int64_t offset) noexcept nogil:
    """Inserts a physical offset in order, once. Chains are in order, except where RocketMQ entered a record again."""
    cdef int64_t place = q.found_count
    cdef int64_t i
    while place > 0 and q.found[place - 1] < offset:
        place -= 1
    if place > 0 and q.found[place - 1] == offset:
        return
    for i in range(q.found_count, place, -1):
        q.found[i] = q.found[i - 1]
    q.found[place] = offset
    q.found_count += 1


cdef inline void _add_damaged(key_query* q, int64_t offset, int status) noexcept nogil:
    cdef int i
    for i in range(q.damaged_count):
        if q.damaged[i] == offset:
            return
    if q.damaged_count < QUERY_DAMAGED_MAX:
        q.damaged[q.damaged_count] = offset
        q.damaged_status[q.damaged_count] = status
        q.damaged_count += 1


cdef inline int _next_candidates(const index_view* index, key_query* q, const log_window* window) noexcept nogil:
    """Walks on to the next candidates; returns how many. Their records come from memory while the walk continues."""
    cdef int found = 0
    while q.walk.entry != 0 and found < QUERY_CANDIDATES:
        if index_walk_step(index, &q.walk, &q.candidates[found]):
            if q.walk.entry != 0:
                window_prefetch(window, q.candidates[found])
            found += 1
    return found


cdef int index_query(const index_view* index, key_query* q, log_window* window) noexcept nogil:
    """Continues down the chain of `q.walk`. Adds the intact records with the key to `q.found`, and the places without
    an intact record to `q.damaged`.

    Skips entries that point to a hole, to a removed part of the log, or to a record of another key with the same hash.
    It verifies a record without the key too: the damage may be in its key."""
    cdef record_view v
    cdef const uint8_t* at
    cdef int status
    while True:
        if q.candidate_at == q.candidate_count:
            q.candidate_at = 0
            q.candidate_count = _next_candidates(index, q, window)
            if q.candidate_count == 0:
                return QUERY_DONE
        if q.found_count == q.room:
            return QUERY_FULL
        q.wanted = q.candidates[q.candidate_at]
        status = window_record(window, q.wanted, &v, &at)
        if status == WINDOW_NEED_SEGMENT:
            return QUERY_NEED_SEGMENT
        q.candidate_at += 1
        if status == WINDOW_GONE or status == WINDOW_BEYOND or q.wanted >= q.end:
            continue
        if status != RECORD_OK:
            _add_damaged(q, q.wanted, status)
            continue
        if not q.walk.begin_ms <= v.store_timestamp <= q.walk.end_ms:
            continue
        if not record_intact(at, &v):
            _add_damaged(q, q.wanted, RECORD_BAD_CHECKSUM)
        elif v.topic_len == q.topic_len and memcmp(v.topic, q.topic, q.topic_len) == 0 \
                and takes_index_entry(v.sys_flag) \
                and (q.key == NULL or index_key_matches(&v, q.key, q.key_len)) \
                and v.total_size <= q.end - q.wanted \
                and not record_expired(window, &v):
            _add_found(q, q.wanted)
            if q.found_count == 1:
                q.parts = parts_of(at, &v)
                q.start = at


# ------------------------------------------------------------------------------------------------------ for Python


cdef index_view index_view_of(MappedFile file, uint32_t slots, uint32_t capacity) except *:
    cdef index_view index
    index.p = file.address
    index_set_slots(&index, slots)
    index.capacity = capacity
    if not index_view_fits(&index, file.length):
        raise ValueError(f"{file!r} is no index file of {slots} slots and {capacity} entries")
    return index


def trim_file(MappedFile file not None, uint32_t slots, uint32_t capacity, int64_t physical_offset):
    """Removes the newest entries at or past `physical_offset`; returns how many remain."""
    cdef index_view index = index_view_of(file, slots, capacity)
    cdef int32_t left
    if not file.writable:
        raise ValueError(f"{file!r} is mapped for reading only")
    with nogil:
        left = index_trim(&index, physical_offset)
    return left


cdef index_view _view_of(const uint8_t[::1] data, uint32_t slots, uint32_t capacity) except *:
    cdef index_view index
    index.p = <uint8_t*>&data[0] if data.shape[0] else NULL
    index_set_slots(&index, slots)
    index.capacity = capacity
    if not index_view_fits(&index, data.shape[0]):
        raise ValueError(f"{data.shape[0]} bytes are no index file of {slots} slots and {capacity} entries")
    return index


def key_hash(const uint8_t[::1] topic, const uint8_t[::1] key):
    """The hash of a topic's key in the index."""
    cdef int32_t seed = index_topic_seed(&topic[0] if topic.shape[0] else NULL, topic.shape[0])
    return index_key_hash(seed, &key[0] if key.shape[0] else NULL, key.shape[0])


def put(uint8_t[::1] data, uint32_t slots, uint32_t capacity, int32_t hash, int64_t physical_offset,
        int64_t store_timestamp):
    """Enters a key hash into a whole index file; False when it is full."""
    cdef index_view index = _view_of(data, slots, capacity)
    if hash < 0:
        raise ValueError(f"key hash {hash} is below 0")
    return index_put(&index, hash, index_slot_number(&index, hash), physical_offset, store_timestamp) == INDEX_OK


def trim(uint8_t[::1] data, uint32_t slots, uint32_t capacity, int64_t physical_offset):
    """Removes the newest entries at or past `physical_offset`; returns how many remain."""
    cdef index_view index = _view_of(data, slots, capacity)
    return index_trim(&index, physical_offset)


def lookup(const uint8_t[::1] data, uint32_t slots, uint32_t capacity, int32_t hash, int64_t begin_ms, int64_t end_ms,
           int room=16):
    """Physical offsets of the entries with that hash, newest first, fetched `room` at a time."""
    cdef index_view index = _view_of(data, slots, capacity)
    cdef index_walk walk
    cdef int64_t[64] offsets
    cdef int i, count
    if hash < 0 or not 0 < room <= 64:
        raise ValueError(f"key hash {hash} is below 0, or room {room} is not 1 to 64")
    walk.hash, walk.begin_ms, walk.end_ms = hash, index_time(begin_ms), index_time(end_ms)
    found = []
    index_walk_begin(&index, &walk)
    while walk.entry != 0:
        count = index_walk_next(&index, &walk, offsets, room)
        found.extend([offsets[i] for i in range(count)])
    return found
