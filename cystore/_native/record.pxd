from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.checksum cimport head_checksum

cdef enum RecordStatus:
    RECORD_OK = 0
    RECORD_BLANK = 1        # end-of-file filler; total_size is the room it fills
    RECORD_ZERO = 2         # nothing was written here
    RECORD_SHORT = 3        # the record runs past the bytes at hand
    RECORD_BAD_MAGIC = 4
    RECORD_BAD_LENGTH = 5   # lengths inside the record contradict each other
    RECORD_BAD_TOPIC = 6
    RECORD_BAD_CHECKSUM = 7
    RECORD_BAD_POSITION = 8  # its physical offset is not where it stands

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

cdef int record_parse(const uint8_t* p, size_t available, record_view* v) noexcept nogil
cdef bint record_check(const uint8_t* p, const record_view* v, head_checksum* last) noexcept nogil
cdef bint topic_valid(const uint8_t* topic, Py_ssize_t length) noexcept nogil

# One name and value inside a record's properties.
cdef struct property_view:
    const uint8_t* name
    int name_len
    const uint8_t* value
    int value_len

# The pair that starts at or behind `at`, which moves on; 0 at the end. A pair with an empty name or value is skipped.
cdef bint property_next(const uint8_t** at, const uint8_t* end, property_view* found) noexcept nogil
# Finds a property by name, the last one where the name repeats (as RocketMQ's map has it); 0 when there is none.
cdef bint property_find(const uint8_t* properties, int length, const char* name, int name_len,
                        const uint8_t** value, int* value_len) noexcept nogil
# Java's String.hashCode of UTF-8 text, continued from `seed`.
cdef int32_t java_hash(int32_t seed, const uint8_t* text, size_t length) noexcept nogil
# The character of UTF-8 text at `at`, which moves behind it; U+FFFD for bytes that are no text, as Java reads them.
cdef uint32_t text_character(const uint8_t* text, size_t length, size_t* at) noexcept nogil
