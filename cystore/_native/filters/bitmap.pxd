from libc.stdint cimport int32_t, uint8_t

from cystore._native.filters.program cimport filter_program

cdef enum:
    BITMAP_HASHES = 3       # bits of each group: RocketMQ's number for its error rate of 20 %

# One group's filter of a topic.
cdef struct group_filter:
    const filter_program* program   # NULL: unknown here, so each message may match
    int32_t[BITMAP_HASHES] bits     # positions in the bitmap

# All filters of one topic.
cdef struct topic_filters:
    const uint8_t* topic
    int topic_len
    int first                       # in `filters` of the table
    int count

cdef struct filter_table:
    int topics_count
    const topic_filters* topics
    const group_filter* filters
    int bitmap_bytes

# Writes the bitmap of a message's unit: for each group whose filter the message matches, or may match, the group's
# bits are set. False where the topic has no filter: then the unit has no bitmap. An error of an expression is a match.
cdef bint bitmap_of(const filter_table* table, const uint8_t* topic, int topic_len, const uint8_t* properties,
                    int length, uint8_t* to) noexcept nogil

# Whether a bit of the group is missing: then the message does not match the group's filter.
cdef bint bitmap_lacks(const uint8_t* bitmap, const int32_t* bits) noexcept nogil

cdef class FilterTable:
    cdef filter_table c
    cdef topic_filters* topics
    cdef group_filter* filters
    cdef list kept                  # what the table points into

cdef class GroupBits:
    cdef int32_t[BITMAP_HASHES] bits
    cdef readonly int bitmap_bytes
