"""Writes one record into its place and computes its checksum on the way (crc_copy.h)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cystore._native.record.checksum cimport crc32c_combine, crc32c_update
from cystore._native.layout cimport (
    HOST_V4_BYTES, RECORD_BODY_AT, RECORD_BORN_TIMESTAMP_AT, RECORD_CHECKED_AT, RECORD_CHECKSUM_FIELD_AT,
    RECORD_MAGIC_CYSTORE, RECORD_PHYSICAL_OFFSET_AT, RECORD_PREFIX_BYTES, RECORD_PROPERTIES_LENGTH_BYTES,
    RECORD_QUEUE_ID_AT, RECORD_QUEUE_OFFSET_AT, RECORD_STORE_TIMESTAMP_BYTES, RECORD_SYS_FLAG_AT,
    RECORD_TAIL_FIXED_BYTES, RECORD_TOPIC_LENGTH_BYTES, RECORD_TOTAL_SIZE_AT, queue_entry, record_set_checksum_field,
    store_be16, store_be32, store_be64
)

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)

cdef extern from "crc_copy.h" nogil:
    int crc_copy_known
    uint64_t crc_step_1(uint64_t crc, uint8_t byte)
    uint64_t crc_step_2(uint64_t crc, uint16_t half)
    uint64_t crc_step_4(uint64_t crc, uint32_t word)
    uint64_t crc_step_8(uint64_t crc, uint64_t words)
    uint64_t crc_shift(uint64_t crc, size_t length)
    uint64_t crc_copy_short(uint64_t crc, uint8_t* to, const uint8_t* source, size_t length)
    uint64_t crc_copy_padded(uint8_t* to, const uint8_t* source, size_t length)
    uint64_t crc_copy_words(uint64_t crc, uint8_t* to, const uint8_t* source, size_t length)
    uint16_t bswap16 "__builtin_bswap16"(uint16_t v)
    uint32_t bswap32 "__builtin_bswap32"(uint32_t v)
    uint64_t bswap64 "__builtin_bswap64"(uint64_t v)


# One message on its way into the log. The caller keeps the memory that it points to; the kernel fills the last part.
cdef struct append_item:
    const uint8_t* body
    const uint8_t* topic
    const uint8_t* properties
    # topic and properties with their lengths, as in a record, behind 8 bytes of 0; NULL: `topic` and `properties` count
    const uint8_t* tail
    const uint8_t* born_host
    const uint8_t* store_host
    int32_t body_len
    int32_t topic_len
    int32_t properties_len
    int32_t born_host_len
    int32_t store_host_len
    int32_t size
    int32_t light_count             # number of light queues (light.pxd)
    int32_t light_base              # length of the properties before the lock: without the light queues' offsets
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t reconsume_times
    int64_t born_timestamp          # -1: the time of the append
    int64_t prepared_transaction_offset
    uint32_t body_checksum
    bint has_body_checksum          # computed before the lock
    queue_entry* entry
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp
    int32_t light_at                # place of the light queues' names in the properties
    int32_t light_len

# Each caller passes a constant `summing`, so the compiler makes two functions of each function.

cdef inline uint64_t put_be16(uint8_t* at, uint16_t v, uint64_t crc, bint summing) noexcept nogil:
    store_be16(at, v)
    return crc_step_2(crc, bswap16(v)) if summing else crc


cdef inline uint64_t put_be32(uint8_t* at, uint32_t v, uint64_t crc, bint summing) noexcept nogil:
    store_be32(at, v)
    return crc_step_4(crc, bswap32(v)) if summing else crc


cdef inline uint64_t put_be64(uint8_t* at, uint64_t v, uint64_t crc, bint summing) noexcept nogil:
    store_be64(at, v)
    return crc_step_8(crc, bswap64(v)) if summing else crc


cdef inline uint64_t put_bytes(uint8_t* at, const uint8_t* source, size_t length, uint64_t crc,
                               bint summing) noexcept nogil:
    if summing:
        return crc_copy_short(crc, at, source, length)
    if length:  # the pointer of an empty text may be NULL
        memcpy(at, source, length)
    return crc


cdef inline uint64_t put_host(uint8_t* at, const uint8_t* packed, int32_t length, uint64_t crc,
                              bint summing) noexcept nogil:
    cdef uint64_t whole
    if length != <int32_t>HOST_V4_BYTES:
        return put_bytes(at, packed, length, crc, summing)
    memcpy(&whole, packed, 8)
    memcpy(at, &whole, 8)
    return crc_step_8(crc, whole) if summing else crc


cdef inline uint64_t write_head(uint8_t* p, const append_item* item, uint32_t magic, bint summing) noexcept nogil:
    """Writes the fields before the body, except the checksum field. Returns the CRC register."""
    cdef uint8_t* at = p + RECORD_PREFIX_BYTES
    cdef uint64_t crc = 0xFFFFFFFFu
    crc = put_be64(p + RECORD_TOTAL_SIZE_AT, <uint64_t><uint32_t>item.size << 32 | magic, crc, summing)
    crc = put_be64(p + RECORD_QUEUE_ID_AT, <uint64_t><uint32_t>item.queue_id << 32 | <uint32_t>item.flag, crc, summing)
    crc = put_be64(p + RECORD_QUEUE_OFFSET_AT, <uint64_t>item.queue_offset, crc, summing)
    crc = put_be64(p + RECORD_PHYSICAL_OFFSET_AT, <uint64_t>item.physical_offset, crc, summing)
    crc = put_be32(p + RECORD_SYS_FLAG_AT, <uint32_t>item.sys_flag, crc, summing)
    crc = put_be64(p + RECORD_BORN_TIMESTAMP_AT, <uint64_t>item.born_timestamp, crc, summing)
    crc = put_host(at, item.born_host, item.born_host_len, crc, summing)
    at += item.born_host_len
    crc = put_be64(at, <uint64_t>item.store_timestamp, crc, summing)
    at += RECORD_STORE_TIMESTAMP_BYTES
    crc = put_host(at, item.store_host, item.store_host_len, crc, summing)
    at += item.store_host_len
    # Two words hold the reconsume times, the offset of the prepared message and the body's length.
    crc = put_be64(at, <uint64_t><uint32_t>item.reconsume_times << 32
                   | <uint64_t>item.prepared_transaction_offset >> 32, crc, summing)
    return put_be64(at + 8, <uint64_t>item.prepared_transaction_offset << 32 | <uint32_t>item.body_len, crc, summing)


cdef inline uint64_t write_tail(uint8_t* at, const append_item* item, bint summing) noexcept nogil:
    """Writes the fields after the body, and perhaps some bytes of 0 before them. Returns the register, begun with 0."""
    cdef uint64_t crc = 0
    cdef size_t length = RECORD_TAIL_FIXED_BYTES + item.topic_len + item.properties_len
    if item.tail != NULL:
        return crc_copy_padded(at, item.tail, length) if summing else put_bytes(at, item.tail, length, 0, summing)
    at[0] = <uint8_t>item.topic_len
    if summing:
        crc = crc_step_1(crc, <uint8_t>item.topic_len)
    crc = put_bytes(at + RECORD_TOPIC_LENGTH_BYTES, item.topic, item.topic_len, crc, summing)
    at += RECORD_TOPIC_LENGTH_BYTES + <size_t>item.topic_len
    crc = put_be16(at, <uint16_t>item.properties_len, crc, summing)
    return put_bytes(at + RECORD_PROPERTIES_LENGTH_BYTES, item.properties, item.properties_len, crc, summing)


cdef inline void write_record(uint8_t* p, const append_item* item, uint32_t magic) noexcept nogil:
    """Writes the whole record, its checksum field last."""
    cdef uint8_t* body = p + RECORD_BODY_AT + item.born_host_len + item.store_host_len
    cdef uint8_t* tail = body + item.body_len
    cdef uint32_t checksum
    cdef uint64_t head_crc, body_crc, tail_crc, crc
    cdef size_t tail_bytes
    if magic == RECORD_MAGIC_CYSTORE and crc_copy_known:
        tail_bytes = item.size - (tail - p)
        tail_crc = write_tail(tail, item, True)  # before the body: it may write bytes of 0 there
        if item.has_body_checksum:
            memcpy(body, item.body, item.body_len)
            head_crc = write_head(p, item, magic, True)
            crc = <uint32_t>~crc32c_combine(~<uint32_t>head_crc, item.body_checksum, item.body_len)
            checksum = ~<uint32_t>(crc_shift(crc, tail_bytes) ^ tail_crc)
        else:
            body_crc = crc_copy_words(0, body, item.body, item.body_len)
            head_crc = write_head(p, item, magic, True)
            crc = crc_shift(head_crc, item.body_len + tail_bytes) ^ crc_shift(body_crc, tail_bytes)
            checksum = ~<uint32_t>(crc ^ tail_crc)
        failpoint("append.bytes_written")
    else:
        write_head(p, item, magic, False)
        write_tail(tail, item, False)
        put_bytes(body, item.body, item.body_len, 0, False)
        failpoint("append.bytes_written")
        checksum = item.body_checksum
        if magic == RECORD_MAGIC_CYSTORE:
            checksum = crc32c_update(crc32c_update(0, p, RECORD_CHECKSUM_FIELD_AT), p + RECORD_CHECKED_AT,
                                     item.size - RECORD_CHECKED_AT)
    record_set_checksum_field(p, checksum)
