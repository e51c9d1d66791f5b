"""The fields of a record that was read, and a comparison of short texts."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum RecordStatus:
    RECORD_OK = 0
    RECORD_BLANK = 1        # end-of-file filler; total_size is the room it fills
    RECORD_ZERO = 2         # nothing was written here
    RECORD_SHORT = 3        # the record runs past the bytes at hand
    RECORD_BAD_MAGIC = 4
    RECORD_BAD_LENGTH = 5   # lengths inside the record contradict each other
    RECORD_BAD_TOPIC = 6
    RECORD_BAD_CHECKSUM = 7
    RECORD_BAD_POSITION = 8  # its physical offset differs from its place

# A parsed record: numbers in native order, pointers into the bytes it was parsed from.
cdef struct record_view:
    int32_t total_size
    uint32_t magic
    uint32_t checksum
    int32_t queue_id
    int32_t flag
    int64_t queue_offset
    int64_t physical_offset
    int32_t sys_flag
    int64_t born_timestamp
    const uint8_t* born_host
    int born_host_len           # 8 or 20, the port's 4 included
    int64_t store_timestamp
    const uint8_t* store_host
    int store_host_len
    int32_t reconsume_times
    int64_t prepared_transaction_offset
    const uint8_t* body
    int32_t body_len
    const uint8_t* topic
    int topic_len
    const uint8_t* properties
    int properties_len

# What an object keeps of a record that was read, to find its parts again: an eighth of a view.
cdef struct record_parts:
    int32_t total_size
    int32_t sys_flag
    int32_t body_at
    int32_t body_len
    int32_t topic_len
    int32_t properties_len


cdef inline bint same_text(const uint8_t* a, const uint8_t* b, int length) noexcept nogil:
    """Compares two texts, most of them without a call of memcmp: the first and the last bytes meet or overlap in texts
    of at most 16 bytes."""
    cdef uint64_t first, last, wanted_first, wanted_last
    cdef uint32_t half, last_half, wanted_half, wanted_last_half
    if length > 16:
        return memcmp(a, b, length) == 0
    if length >= 8:
        memcpy(&first, a, 8)
        memcpy(&last, a + length - 8, 8)
        memcpy(&wanted_first, b, 8)
        memcpy(&wanted_last, b + length - 8, 8)
        return first == wanted_first and last == wanted_last
    if length >= 4:
        memcpy(&half, a, 4)
        memcpy(&last_half, a + length - 4, 4)
        memcpy(&wanted_half, b, 4)
        memcpy(&wanted_last_half, b + length - 4, 4)
        return half == wanted_half and last_half == wanted_last_half
    return length == 0 or (a[0] == b[0] and a[length // 2] == b[length // 2] and a[length - 1] == b[length - 1])
