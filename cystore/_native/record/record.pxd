# Text in a record, as Java reads it.

from libc.stdint cimport int32_t, uint8_t, uint32_t

# Java's String.hashCode of UTF-8 text, continued from `seed`.
cdef int32_t java_hash(int32_t seed, const uint8_t* text, size_t length) noexcept nogil
# The character of UTF-8 text at `at`; moves `at` behind it. Gives U+FFFD for bytes that are not text, as Java does.
cdef uint32_t text_character(const uint8_t* text, size_t length, size_t* at) noexcept nogil
