from libc.stdint cimport int32_t, uint8_t, uint32_t

from cystore._native.record.record_view cimport record_view

cdef int record_parse(const uint8_t* p, size_t available, record_view* v) noexcept nogil
cdef bint record_check(const uint8_t* p, const record_view* v) noexcept nogil

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
