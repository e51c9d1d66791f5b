"""The cursor over records: it reads a record in place and compares its checksum. It is compiled into each walk over a
log, so a walk reads no more than it needs.

A walk calls `walk_begin` once, then `record_at` for each record, and adds `total_size` to its position.

Source of the format: CommitLog.DefaultAppendMessageCallback and CommitLog.checkMessageAndReturnSize of RocketMQ 4.9.3.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cystore._native.record.checksum cimport crc32_body, crc32c_update
from cystore._native.layout cimport (
    BLANK_SIZE_MIN, HOST_V4_BYTES, HOST_V6_BYTES, PROPERTIES_BYTES_MAX, RECORD_BODY_LENGTH_BYTES, RECORD_CHECKED_AT,
    RECORD_CHECKSUM_FIELD_AT, RECORD_FIXED_BYTES, RECORD_MAGIC_BLANK, RECORD_MAGIC_CYSTORE, RECORD_MAGIC_ROCKETMQ,
    RECORD_PREFIX_BYTES, RECORD_PREPARED_TRANSACTION_OFFSET_BYTES, RECORD_PROPERTIES_LENGTH_BYTES,
    RECORD_RECONSUME_TIMES_BYTES, RECORD_SIZE_MIN, RECORD_STORE_TIMESTAMP_BYTES, RECORD_TAIL_FIXED_BYTES,
    RECORD_TOPIC_LENGTH_BYTES, SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6, TOPIC_BYTES_MAX, load_be16, load_be32,
    load_be64, record_born_timestamp, record_checksum_field, record_flag, record_magic, record_physical_offset,
    record_queue_id, record_queue_offset, record_sys_flag, record_total_size
)
from cystore._native.memory.atomics cimport CACHE_LINE_BYTES, prefetch_early, prefetch_for_read
from cystore._native.record.record_view cimport (
    RECORD_BAD_CHECKSUM, RECORD_BAD_LENGTH, RECORD_BAD_MAGIC, RECORD_BAD_POSITION, RECORD_BAD_TOPIC, RECORD_BLANK,
    RECORD_OK, RECORD_SHORT, RECORD_ZERO, record_parts, record_view, same_text
)

cdef enum:
    FETCHED_BYTES = 3072        # of log, in front of a walk
    EARLY_BYTES = 6144          # behind them, to what is fetched into the second-level cache

cdef extern from "topic_bytes.h" nogil:
    const uint8_t* topic_bytes

cdef extern from "crc_copy.h" nogil:
    enum:
        CRC_READ_MAX
    int crc_copy_known
    uint64_t crc_read(uint64_t crc, const uint8_t* source, size_t length)
    uint64_t crc_step_8(uint64_t crc, uint64_t words)


cdef inline bint topic_valid(const uint8_t* topic, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint8_t valid = 1
    if length < 1 or length > <Py_ssize_t>TOPIC_BYTES_MAX:
        return False
    for i in range(length):
        valid &= topic_bytes[topic[i]]
    return valid


cdef inline void read_prefix(const uint8_t* p, record_view* v) noexcept nogil:
    """Reads the fields that have the same place in each record. `v.sys_flag` gives the lengths of the hosts."""
    v.checksum = record_checksum_field(p)
    v.queue_id = record_queue_id(p)
    v.flag = record_flag(p)
    v.queue_offset = record_queue_offset(p)
    v.physical_offset = record_physical_offset(p)
    v.born_timestamp = record_born_timestamp(p)
    v.born_host = p + RECORD_PREFIX_BYTES
    v.born_host_len = HOST_V6_BYTES if v.sys_flag & SYS_FLAG_BORN_HOST_V6 else HOST_V4_BYTES
    v.store_host_len = HOST_V6_BYTES if v.sys_flag & SYS_FLAG_STORE_HOST_V6 else HOST_V4_BYTES


cdef inline size_t read_hosts(const uint8_t* p, record_view* v) noexcept nogil:
    """Reads the fields between the born host and the body's length, and gives the place of that length. The caller has
    checked that the record is long enough for hosts of these lengths."""
    cdef size_t at = <size_t>RECORD_PREFIX_BYTES + v.born_host_len
    v.store_timestamp = <int64_t>load_be64(p + at)
    at += RECORD_STORE_TIMESTAMP_BYTES
    v.store_host = p + at
    at += v.store_host_len
    v.reconsume_times = <int32_t>load_be32(p + at)
    v.prepared_transaction_offset = <int64_t>load_be64(p + at + RECORD_RECONSUME_TIMES_BYTES)
    return at + RECORD_RECONSUME_TIMES_BYTES + RECORD_PREPARED_TRANSACTION_OFFSET_BYTES


cdef inline int record_read(const uint8_t* p, size_t available, record_view* v) noexcept nogil:
    """Fills `v` from the bytes at `p`. Checks each length against the bytes that are left before it uses it. `v` holds
    the record before this record, from the same memory, or its topic is NULL."""
    cdef const uint8_t* last_topic = v.topic
    cdef int last_topic_len = v.topic_len
    cdef size_t at, size
    if available < BLANK_SIZE_MIN:
        return RECORD_SHORT
    v.total_size = record_total_size(p)
    v.magic = record_magic(p)
    if v.magic == RECORD_MAGIC_BLANK:
        return RECORD_BLANK if v.total_size >= <int32_t>BLANK_SIZE_MIN else RECORD_BAD_LENGTH
    if v.magic != RECORD_MAGIC_CYSTORE and v.magic != RECORD_MAGIC_ROCKETMQ:
        return RECORD_ZERO if v.magic == 0 and v.total_size == 0 else RECORD_BAD_MAGIC
    if v.total_size < <int32_t>RECORD_SIZE_MIN:
        return RECORD_BAD_LENGTH
    size = <size_t>v.total_size
    if size > available:
        return RECORD_SHORT
    v.sys_flag = record_sys_flag(p)
    read_prefix(p, v)
    if <size_t>RECORD_FIXED_BYTES + v.born_host_len + v.store_host_len > size:
        return RECORD_BAD_LENGTH
    at = read_hosts(p, v)
    v.body_len = <int32_t>load_be32(p + at)
    at += RECORD_BODY_LENGTH_BYTES
    if v.body_len < 0 or <size_t>v.body_len + RECORD_TAIL_FIXED_BYTES > size - at:
        return RECORD_BAD_LENGTH
    v.body = p + at
    at += <size_t>v.body_len
    v.topic_len = p[at]
    at += RECORD_TOPIC_LENGTH_BYTES
    if <size_t>v.topic_len + RECORD_PROPERTIES_LENGTH_BYTES > size - at:
        return RECORD_BAD_LENGTH
    v.topic = p + at
    at += <size_t>v.topic_len
    v.properties_len = load_be16(p + at)
    at += RECORD_PROPERTIES_LENGTH_BYTES
    v.properties = p + at
    if v.properties_len > <int>PROPERTIES_BYTES_MAX or at + <size_t>v.properties_len != size:
        return RECORD_BAD_LENGTH
    if v.queue_id < 0 or not (last_topic != NULL and last_topic_len == v.topic_len
                                  and same_text(last_topic, v.topic, v.topic_len)
                              or topic_valid(v.topic, v.topic_len)):
        return RECORD_BAD_TOPIC
    return RECORD_OK


cdef inline record_parts parts_of(const uint8_t* p, const record_view* v) noexcept nogil:
    """The parts of a record that `record_read` has read."""
    cdef record_parts parts
    parts.total_size = v.total_size
    parts.sys_flag = v.sys_flag
    parts.body_at = <int32_t>(v.body - p)
    parts.body_len = v.body_len
    parts.topic_len = v.topic_len
    parts.properties_len = v.properties_len
    return parts


cdef inline record_view view_of(const uint8_t* p, const record_parts* parts) noexcept nogil:
    """The record at `p` once more. All places follow from lengths that were checked, not from bytes that may have
    changed since."""
    cdef record_view v
    v.total_size = parts.total_size
    v.magic = record_magic(p)
    v.sys_flag = parts.sys_flag
    read_prefix(p, &v)
    read_hosts(p, &v)
    v.body = p + parts.body_at
    v.body_len = parts.body_len
    v.topic = v.body + v.body_len + RECORD_TOPIC_LENGTH_BYTES
    v.topic_len = parts.topic_len
    v.properties = v.topic + v.topic_len + RECORD_PROPERTIES_LENGTH_BYTES
    v.properties_len = parts.properties_len
    return v


cdef inline uint32_t record_checksum(const uint8_t* p, const record_view* v) noexcept nogil:
    """The value that the checksum field of a parsed record should hold."""
    cdef uint64_t head
    if v.magic == RECORD_MAGIC_CYSTORE:
        if crc_copy_known and v.total_size <= CRC_READ_MAX:
            memcpy(&head, p, RECORD_CHECKSUM_FIELD_AT)
            return ~<uint32_t>crc_read(crc_step_8(0xFFFFFFFFu, head), p + RECORD_CHECKED_AT,
                                       <size_t>v.total_size - RECORD_CHECKED_AT)
        return crc32c_update(crc32c_update(0, p, RECORD_CHECKSUM_FIELD_AT), p + RECORD_CHECKED_AT,
                             <size_t>v.total_size - RECORD_CHECKED_AT)
    return crc32_body(v.body, <size_t>v.body_len) if v.body_len > 0 else 0


cdef inline bint record_intact(const uint8_t* p, const record_view* v) noexcept nogil:
    # RocketMQ's batch encoder writes a checksum of an empty body, but RocketMQ does not check it. Nor does cystore.
    if v.magic == RECORD_MAGIC_ROCKETMQ and v.body_len == 0:
        return True
    return v.checksum == record_checksum(p, v)


cdef inline void walk_begin(record_view* v) noexcept nogil:
    """Begins a walk: no record was read before."""
    memset(v, 0, sizeof(record_view))


cdef inline int64_t fetch_ahead(const uint8_t* p, int64_t at, int64_t fetched, int64_t end) noexcept nogil:
    """Prefetches what a walk at p[at] reads next, below p[end], and returns how far. `fetched`: the last result. A
    checksum reads a record in three places at once, and begins anew with each record. The hardware prefetcher does not
    follow that, and lines that another CPU has just written come late. The first-level cache waits for few lines at
    once, so the second-level cache gets them earlier."""
    cdef int64_t upto = min(at + <int64_t>FETCHED_BYTES, end)
    fetched = max(fetched, at)
    while fetched < upto:
        if fetched + <int64_t>EARLY_BYTES < end:
            prefetch_early(p + fetched + EARLY_BYTES)
        prefetch_for_read(p + fetched)
        fetched += CACHE_LINE_BYTES
    return fetched


cdef inline int record_at(const uint8_t* p, size_t available, int64_t position, int64_t file_end, bint verifies,
                          record_view* v) noexcept nogil:
    """One step of a walk: reads the record at `position` of the log, in the file that ends at `file_end`.

    RECORD_OK: the record belongs there, and its checksum is right if the walk `verifies`. RECORD_BLANK: a blank fills
    the rest of the file. Any other RecordStatus names the damage, or the record runs past the `available` bytes."""
    cdef int status = record_read(p, available, v)
    if status == RECORD_OK:
        if v.physical_offset != position:
            return RECORD_BAD_POSITION
        return RECORD_OK if not verifies or record_intact(p, v) else RECORD_BAD_CHECKSUM
    return RECORD_BAD_LENGTH if status == RECORD_BLANK and v.total_size != file_end - position else status
