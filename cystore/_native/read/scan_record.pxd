# One record of a walk over the log (scan.pyx): is it valid, and is it what its queue and the index expect next?

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cystore._native.derived.ext cimport ext_is_address
from cystore._native.derived.index cimport index_key_hash, index_seconds, index_topic_seed
from cystore._native.layout cimport (
    HOST_V4_BYTES, HOST_V6_BYTES, INDEX_ENTRY_BYTES, PROPERTIES_BYTES_MAX, QUEUE_ENTRY_BYTES, RECORD_BODY_AT,
    RECORD_BODY_LENGTH_BYTES, RECORD_HEAD_BYTES_MAX, RECORD_SIZE_MIN, SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6, TOPIC_BYTES_MAX, index_entry_key_hash, index_entry_physical_offset,
    index_entry_seconds, load_be32, queue_entry_disk_physical_offset, queue_entry_disk_size,
    queue_entry_disk_tags_code, record_physical_offset, record_sys_flag, record_total_size
)
from cystore._native.memory.queue_table cimport queue_hash
from cystore._native.read.scan_state cimport (
    SCAN_BLANK, SCAN_ENTRIES, SCAN_INVALID, SCAN_KEYS, SCAN_LIMIT, SCAN_MORE, SCAN_NEW_QUEUE, SCAN_OTHER_ENTRY,
    SCAN_OTHER_KEY, SCAN_OUT_OF_SEQUENCE, scan_queue, scan_state
)
from cystore._native.record.derive cimport derive_begin, derive_next_key, derived, due_time_possible
from cystore._native.record.record_read cimport record_intact, record_read
from cystore._native.record.record_view cimport (
    RECORD_BAD_CHECKSUM, RECORD_BAD_LENGTH, RECORD_BAD_POSITION, RECORD_BLANK, RECORD_OK, RECORD_SHORT,
    record_view
)

cdef enum:
    # Hosts of 20 bytes instead of 8, the longest topic and properties: what a record can have beside its body.
    BESIDE_BODY_MAX = RECORD_SIZE_MIN + 2 * (HOST_V6_BYTES - HOST_V4_BYTES) + TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX
    # A consume queue cannot have more entries than that: 20 bytes each in 63 bits.
    QUEUE_OFFSET_BITS = 58


cdef inline int _short(const uint8_t* p, int64_t available, int64_t room, scan_state* s) noexcept nogil:
    """A record that runs past the bytes at hand: worth reading on for, or one whose size cannot be true?"""
    cdef int64_t size, body_at, body
    s.needed = RECORD_HEAD_BYTES_MAX if room > RECORD_HEAD_BYTES_MAX else room
    if available < s.needed:
        return SCAN_MORE
    if available < RECORD_HEAD_BYTES_MAX:      # even of its size not all need be there
        s.reason = RECORD_BAD_LENGTH
        return SCAN_INVALID
    size = record_total_size(p)
    if size > room:
        s.reason = RECORD_BAD_LENGTH
        return SCAN_INVALID
    if record_physical_offset(p) != s.position:
        s.reason = RECORD_BAD_POSITION
        return SCAN_INVALID
    body_at = RECORD_BODY_AT + (HOST_V6_BYTES if record_sys_flag(p) & SYS_FLAG_BORN_HOST_V6 else HOST_V4_BYTES)
    body_at += HOST_V6_BYTES if record_sys_flag(p) & SYS_FLAG_STORE_HOST_V6 else HOST_V4_BYTES
    body = <int32_t>load_be32(p + body_at - RECORD_BODY_LENGTH_BYTES)
    if body < 0 or body > size or size - body > BESIDE_BODY_MAX:
        s.reason = RECORD_BAD_LENGTH
        return SCAN_INVALID
    s.needed = size
    return SCAN_MORE


cdef inline int scan_item(const uint8_t* p, int64_t available, scan_state* s, record_view* v) noexcept nogil:
    """What stands at `position`: SCAN_LIMIT for a valid record (in `v`), else the status to stop with."""
    cdef int64_t room = s.file_end - s.position
    cdef int status = record_read(p, <size_t>(available if available < room else room), v)
    if status == RECORD_SHORT:
        return _short(p, available, room, s)
    if status == RECORD_BLANK:
        if v.total_size == room:
            return SCAN_BLANK
        status = RECORD_BAD_LENGTH
    elif status == RECORD_OK:
        if v.physical_offset != s.position:
            status = RECORD_BAD_POSITION
        elif not s.check_checksum or record_intact(p, v):
            return SCAN_LIMIT
        else:
            status = RECORD_BAD_CHECKSUM
    s.reason = status
    return SCAN_INVALID


cdef inline scan_queue* _queue_of(scan_state* s) noexcept nogil:
    cdef uint32_t hash = queue_hash(s.v.topic, s.v.topic_len, s.v.queue_id)
    cdef uint32_t link = s.buckets[hash & s.bucket_mask]
    cdef scan_queue* queue
    while link:
        queue = &s.queues[link - 1]
        if queue.hash == hash and queue.queue_id == s.v.queue_id and queue.topic_len == s.v.topic_len \
                and memcmp(&queue.topic[0], s.v.topic, s.v.topic_len) == 0:
            s.slot = link - 1
            return queue
        link = queue.link
    return NULL


cdef inline bint _is_entry_of(scan_state* s, const uint8_t* entry) noexcept nogil:
    cdef derived found
    cdef int64_t tags_code
    if queue_entry_disk_physical_offset(entry) != s.position or queue_entry_disk_size(entry) != s.v.total_size:
        return False
    tags_code = queue_entry_disk_tags_code(entry)
    if not s.compare_tags or ext_is_address(tags_code):
        return True
    derive_begin(&s.v, NULL, 0, &found)
    if found.delayed:
        if found.due_ms and tags_code == found.due_ms:
            return True
        # RocketMQ, when it rebuilds a queue, knows nothing of the due time of a message that was carried forward.
        return due_time_possible(tags_code, s.v.store_timestamp)
    return found.tags_code == tags_code


cdef inline bint _is_in_time(scan_state* s, const uint8_t* entry, int64_t at) noexcept nogil:
    """Whether an entry's seconds are those of the record; the first one of a file counts from elsewhere."""
    while s.keys_file + 1 < s.keys_file_count and at >= s.keys_files[2 * s.keys_file + 2]:
        s.keys_file += 1
    while s.keys_file > 0 and at < s.keys_files[2 * s.keys_file]:
        s.keys_file -= 1
    if s.keys_file_count == 0 or at == s.keys_files[2 * s.keys_file]:
        return True
    return index_entry_seconds(entry) == index_seconds(s.keys_files[2 * s.keys_file + 1], s.v.store_timestamp)


cdef inline int scan_follow_keys(scan_state* s) noexcept nogil:
    """Compares a record's keys with the index entries that come next; SCAN_LIMIT when they are its keys."""
    cdef derived found
    cdef const uint8_t* key
    cdef const uint8_t* entry
    cdef size_t length
    cdef int32_t seed = 0
    cdef int64_t at = s.keys_at
    cdef bint seeded = False
    derive_begin(&s.v, NULL, 0, &found)
    while derive_next_key(&found, &key, &length):
        if not seeded:
            seed = index_topic_seed(s.v.topic, s.v.topic_len)
            seeded = True
        while True:
            s.wanted = at
            if at >= s.keys_limit:
                return SCAN_OTHER_KEY
            if not s.keys_begin <= at < s.keys_end:
                return SCAN_KEYS
            entry = s.keys + (at - s.keys_begin) * <int64_t>INDEX_ENTRY_BYTES
            # RocketMQ may enter the last record of a file twice.
            if index_entry_physical_offset(entry) >= s.position:
                break
            at += 1
        if index_entry_physical_offset(entry) != s.position \
                or index_entry_key_hash(entry) != index_key_hash(seed, key, length) or not _is_in_time(s, entry, at):
            return SCAN_OTHER_KEY
        at += 1
    s.keys_at = at
    return SCAN_LIMIT


cdef inline int scan_follow(scan_state* s) noexcept nogil:
    """Compares a record with its queue; SCAN_LIMIT when it fits."""
    cdef scan_queue* queue = _queue_of(s)
    cdef const uint8_t* entry
    cdef int64_t number = s.v.queue_offset
    if queue == NULL:
        return SCAN_NEW_QUEUE
    if (not 0 <= number < (<int64_t>1 << QUEUE_OFFSET_BITS) or (number != queue.next and queue.next >= 0)) \
            and s.accepted != s.position:
        return SCAN_OUT_OF_SEQUENCE
    if 0 <= number < queue.removed:
        queue.swallowed = s.swallowed
        if number >= queue.next:
            queue.next = number + 1
        return SCAN_LIMIT
    if 0 <= number < queue.entries_limit:
        if not queue.entries_begin <= number < queue.entries_end:
            s.wanted = number
            return SCAN_ENTRIES
        entry = queue.entries + (number - queue.entries_begin) * <int64_t>QUEUE_ENTRY_BYTES
        if s.accepted_entry != s.position and not _is_entry_of(s, entry):
            s.wanted = number
            return SCAN_OTHER_ENTRY
    elif queue.missing < 0:
        queue.missing = s.position
    if queue.first_physical < 0:
        queue.first_offset = number
        queue.first_physical = s.position
    queue.swallowed = s.swallowed
    if number >= queue.next:
        queue.next = number + 1
    return SCAN_LIMIT
