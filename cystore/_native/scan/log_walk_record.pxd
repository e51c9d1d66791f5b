# A walk over the log (log_walk.pyx): its state, the reasons to stop, and the step over one record. The step checks that
# the record is valid and that its queues and the index expect it next.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.derived.queue_ext cimport ext_is_address
from cystore._native.derived.index cimport index_key_hash, index_seconds, index_topic_seed
from cystore._native.layout cimport (
    HOST_V4_BYTES, HOST_V6_BYTES, INDEX_ENTRY_BYTES, PROPERTIES_BYTES_MAX, QUEUE_ENTRY_BYTES, RECORD_BODY_AT,
    RECORD_BODY_LENGTH_BYTES, RECORD_HEAD_BYTES_MAX, RECORD_SIZE_MIN, SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6, TOPIC_BYTES_MAX, index_entry_key_hash, index_entry_physical_offset,
    index_entry_seconds, load_be32, queue_entry_disk_physical_offset, queue_entry_disk_size,
    queue_entry_disk_tags_code, record_physical_offset, record_sys_flag, record_total_size
)
from cystore._native.memory.local_queues cimport find_local_queue, queue_key
from cystore._native.record.property_read cimport (
    derive_begin, derive_next_key, derived, due_time_possible, light_next, light_of, light_place, light_possible,
    light_queues
)
from cystore._native.record.record_read cimport record_at
from cystore._native.record.record_view cimport (
    RECORD_BAD_LENGTH, RECORD_BAD_POSITION, RECORD_BLANK, RECORD_OK, RECORD_SHORT, record_view
)

cdef enum WalkStatus:
    WALK_LIMIT = 0              # `limit` is reached
    WALK_MORE = 1               # the record at `position` needs `needed` bytes; the caller gave fewer
    WALK_BLANK = 2              # a blank fills the file from `position` on
    WALK_INVALID = 3            # no valid record at `position`: `reason` is its RecordStatus
    WALK_NEW_QUEUE = 4          # the record at `position` belongs to a queue that is not in the table
    WALK_OUT_OF_SEQUENCE = 5    # its queue offset is not the next offset of queue `slot`
    WALK_BACK_IN_TIME = 6       # its store timestamp is lower than that of an earlier record
    WALK_ENTRIES = 7            # the caller has to give consume queue entry `wanted` of queue `slot`
    WALK_OTHER_ENTRY = 8        # that entry does not match the record
    WALK_KEYS = 9               # the caller has to give index entries from `wanted` on
    WALK_OTHER_KEY = 10         # index entry `wanted` does not match the record's next key, or is missing

# The state of one queue (topic, queue id).
cdef struct walk_queue:
    queue_key key
    int64_t next                # queue offset that the next record must have, -1: any
    int64_t first_offset        # queue offset and log position of its first record in the walk, -1 before it
    int64_t first_physical
    int64_t swallowed           # `swallowed` of the walk at its last record
    int64_t missing             # log position of its first record without a matching entry, -1: none
    const uint8_t* entries      # its consume queue entries [entries_begin, entries_end), counted in queue offsets
    int64_t entries_begin
    int64_t entries_end
    int64_t entries_limit       # entries from here on are not compared
    int64_t removed             # records below this queue offset were removed with the queue: they have no entries

cdef struct walk_state:
    walk_queue* queues
    uint32_t* buckets
    uint32_t bucket_mask
    uint32_t queue_count
    bint check_checksum
    bint follow_queues          # compare queue offsets and entries
    bint in_time_order          # store timestamps must ascend at or above the watermark
    bint compare_tags           # an entry's tags code must be the record's
    bint stop_at_units          # stop at each entry with an extended unit: the caller reads the unit
    bint compare_keys           # the index must hold the record's keys next
    int64_t position
    int64_t limit
    int64_t file_end            # of the file that holds `position`
    int64_t watermark
    # The current queue: number `part` of the record at `part_at`. Number 0 is its own queue; light queues follow.
    light_place place
    int32_t queue_id
    int64_t part_at
    int part
    int64_t accepted            # position of a record whose queue offset and time the caller accepted
    int accepted_part           # in this queue of the record
    int64_t accepted_entry      # position of a record whose entry the caller accepted
    int accepted_entry_part     # in this queue of the record
    int64_t left_out            # position of a record that the caller left out of a queue
    int left_out_part           # this one of the record
    int64_t accepted_keys       # position of a record whose index entries the caller accepted
    const uint8_t* keys         # index entries [keys_begin, keys_end), counted over all files; at most keys_limit
    int64_t keys_begin
    int64_t keys_end
    int64_t keys_limit
    int64_t keys_at             # number of the next expected entry
    const int64_t* keys_files   # (number of the first entry, begin timestamp) of each file
    int keys_file_count
    int keys_file               # the file of the last compared entry
    int64_t swallowed           # bytes of damage that the walk stepped over
    int64_t physic_timestamp
    int64_t timed_end           # end of the last record whose store timestamp is at most `physic_timestamp`
    int64_t last_timestamp      # highest store timestamp
    int64_t last_record
    uint32_t last_checksum
    int64_t record_count
    int reason
    int64_t needed
    uint32_t slot
    int64_t wanted
    record_view v
    bint has_derived            # `derived` is that of `v`
    derived derived

cdef enum:
    # The most bytes of a record without its body: IPv6 hosts, the longest topic and the longest properties.
    BESIDE_BODY_MAX = RECORD_SIZE_MIN + 2 * (HOST_V6_BYTES - HOST_V4_BYTES) + TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX
    # The most entries of a consume queue: 20 bytes each in a file position of 63 bits.
    QUEUE_OFFSET_BITS = 58


cdef inline int _short(const uint8_t* p, int64_t available, int64_t room, walk_state* s) noexcept nogil:
    """A record runs past the given bytes: WALK_MORE if it may be valid, WALK_INVALID if its size is impossible."""
    cdef int64_t size, body_at, body
    s.needed = RECORD_HEAD_BYTES_MAX if room > RECORD_HEAD_BYTES_MAX else room
    if available < s.needed:
        return WALK_MORE
    if available < RECORD_HEAD_BYTES_MAX:      # the file ends before a whole head
        s.reason = RECORD_BAD_LENGTH
        return WALK_INVALID
    size = record_total_size(p)
    if size > room:
        s.reason = RECORD_BAD_LENGTH
        return WALK_INVALID
    if record_physical_offset(p) != s.position:
        s.reason = RECORD_BAD_POSITION
        return WALK_INVALID
    body_at = RECORD_BODY_AT + (HOST_V6_BYTES if record_sys_flag(p) & SYS_FLAG_BORN_HOST_V6 else HOST_V4_BYTES)
    body_at += HOST_V6_BYTES if record_sys_flag(p) & SYS_FLAG_STORE_HOST_V6 else HOST_V4_BYTES
    body = <int32_t>load_be32(p + body_at - RECORD_BODY_LENGTH_BYTES)
    if body < 0 or body > size or size - body > BESIDE_BODY_MAX:
        s.reason = RECORD_BAD_LENGTH
        return WALK_INVALID
    s.needed = size
    return WALK_MORE


cdef inline int walk_item(const uint8_t* p, int64_t available, walk_state* s, record_view* v) noexcept nogil:
    """Reads the record at `position` into `v`: WALK_LIMIT if it is valid, else the status to stop with."""
    cdef int64_t room = s.file_end - s.position
    cdef int status = record_at(p, <size_t>(available if available < room else room), s.position, s.file_end,
                                s.check_checksum, v)
    if status == RECORD_OK:
        return WALK_LIMIT
    if status == RECORD_SHORT:
        return _short(p, available, room, s)
    if status == RECORD_BLANK:
        return WALK_BLANK
    s.reason = status
    return WALK_INVALID


cdef inline walk_queue* _queue_of(walk_state* s) noexcept nogil:
    cdef uint32_t link = find_local_queue(
        s.queues, sizeof(walk_queue), s.buckets, s.bucket_mask, s.place.name, s.place.name_len, s.queue_id)
    if link == 0:
        return NULL
    s.slot = link - 1
    return &s.queues[link - 1]


cdef inline derived* _derived(walk_state* s) noexcept nogil:
    """The values that queues and index take from the record: one pass over its properties for all of them."""
    if not s.has_derived:
        derive_begin(&s.v, NULL, 0, &s.derived)
        s.has_derived = True
    return &s.derived


cdef inline bint _is_entry_of(walk_state* s, const uint8_t* entry) noexcept nogil:
    cdef derived* found
    cdef int64_t tags_code
    if queue_entry_disk_physical_offset(entry) != s.position or queue_entry_disk_size(entry) != s.v.total_size:
        return False
    tags_code = queue_entry_disk_tags_code(entry)
    if ext_is_address(tags_code):
        return not s.stop_at_units
    if not s.compare_tags:
        return True
    found = _derived(s)
    if found.delayed:
        if found.due_ms and tags_code == found.due_ms:
            return True
        # A queue that RocketMQ rebuilt has another due time for a message that was carried forward.
        return due_time_possible(tags_code, s.v.store_timestamp)
    return found.tags_code == tags_code


cdef inline bint _is_in_time(walk_state* s, const uint8_t* entry, int64_t at) noexcept nogil:
    """Whether an entry's seconds match the record. The first entry of a file counts from another time, so it always
    matches."""
    while s.keys_file + 1 < s.keys_file_count and at >= s.keys_files[2 * s.keys_file + 2]:
        s.keys_file += 1
    while s.keys_file > 0 and at < s.keys_files[2 * s.keys_file]:
        s.keys_file -= 1
    if s.keys_file_count == 0 or at == s.keys_files[2 * s.keys_file]:
        return True
    return index_entry_seconds(entry) == index_seconds(s.keys_files[2 * s.keys_file + 1], s.v.store_timestamp)


cdef inline int walk_follow_keys(walk_state* s) noexcept nogil:
    """Compares a record's keys with the next index entries; WALK_LIMIT if they match."""
    cdef derived found
    cdef const uint8_t* key
    cdef const uint8_t* entry
    cdef size_t length
    cdef int32_t seed = 0
    cdef int64_t at = s.keys_at
    cdef bint seeded = False
    found = _derived(s)[0]  # a copy: taking its keys changes it
    while derive_next_key(&found, &key, &length):
        if not seeded:
            seed = index_topic_seed(s.v.topic, s.v.topic_len)
            seeded = True
        while True:
            s.wanted = at
            if at >= s.keys_limit:
                return WALK_OTHER_KEY
            if not s.keys_begin <= at < s.keys_end:
                return WALK_KEYS
            entry = s.keys + (at - s.keys_begin) * <int64_t>INDEX_ENTRY_BYTES
            # RocketMQ may enter the last record of a file twice.
            if index_entry_physical_offset(entry) >= s.position:
                break
            at += 1
        if index_entry_physical_offset(entry) != s.position \
                or index_entry_key_hash(entry) != index_key_hash(seed, key, length) or not _is_in_time(s, entry, at):
            return WALK_OTHER_KEY
        at += 1
    s.keys_at = at
    return WALK_LIMIT


cdef inline int _follow(walk_state* s) noexcept nogil:
    """Compares a record with the current queue; WALK_LIMIT if it fits."""
    cdef walk_queue* queue = _queue_of(s)
    cdef const uint8_t* entry
    cdef int64_t number = s.place.queue_offset
    if queue == NULL:
        return WALK_NEW_QUEUE
    if (s.part and number < queue.next) or (s.left_out == s.position and s.left_out_part == s.part):
        return WALK_LIMIT  # dispatch skips an offset in a light queue that the queue has already
    if (not 0 <= number < (<int64_t>1 << QUEUE_OFFSET_BITS) or (number != queue.next and queue.next >= 0)) \
            and (s.accepted != s.position or s.accepted_part != s.part):
        return WALK_OUT_OF_SEQUENCE
    if 0 <= number < queue.removed:
        queue.swallowed = s.swallowed
        if number >= queue.next:
            queue.next = number + 1
        return WALK_LIMIT
    if 0 <= number < queue.entries_limit:
        if not queue.entries_begin <= number < queue.entries_end:
            s.wanted = number
            return WALK_ENTRIES
        entry = queue.entries + (number - queue.entries_begin) * <int64_t>QUEUE_ENTRY_BYTES
        if (s.accepted_entry != s.position or s.accepted_entry_part != s.part) and not _is_entry_of(s, entry):
            if s.part and queue.next < 0 and 0 < queue_entry_disk_size(entry) \
                    and queue_entry_disk_physical_offset(entry) < s.position:
                return WALK_LIMIT  # an earlier record has that offset
            s.wanted = number
            return WALK_OTHER_ENTRY
    elif queue.missing < 0:
        queue.missing = s.position
    if queue.first_physical < 0:
        queue.first_offset = number
        queue.first_physical = s.position
    queue.swallowed = s.swallowed
    if number >= queue.next:
        queue.next = number + 1
    return WALK_LIMIT


cdef inline int walk_follow(walk_state* s) noexcept nogil:
    """Compares a record with its queues, from the queue on at which it stopped; WALK_LIMIT if it fits all."""
    cdef light_queues light
    cdef int status, part = 0
    if s.part_at != s.position:
        s.part_at = s.position
        s.part = 0
    if s.part == 0:
        s.place.name, s.place.name_len = s.v.topic, s.v.topic_len
        s.place.queue_offset, s.queue_id = s.v.queue_offset, s.v.queue_id
        status = _follow(s)
        if status != WALK_LIMIT:
            return status
        s.part = 1
    if not light_possible(&s.v) or not light_of(&s.v, &_derived(s).light, &_derived(s).light_offsets, &light):
        return WALK_LIMIT
    s.queue_id = 0
    while light_next(&light, &s.place):
        part += 1
        if part < s.part:
            continue
        status = _follow(s)
        if status != WALK_LIMIT:
            return status
        s.part = part + 1
    return WALK_LIMIT
