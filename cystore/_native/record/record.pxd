# Text in a record, as Java reads it.

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

# The character of UTF-8 text at `at`; moves `at` behind it. Gives U+FFFD for bytes that are not text, as Java does.
cdef uint32_t text_character(const uint8_t* text, size_t length, size_t* at) noexcept nogil
# Continues the hash `h` with the text from `at` on.
cdef int32_t java_hash_rest(uint32_t h, const uint8_t* text, size_t length, size_t at) noexcept nogil


cdef inline uint32_t java_hash_four(uint32_t h, const uint8_t* text) noexcept nogil:
    """Continues the hash `h` with four ASCII characters."""
    return h * 923521u + (text[0] * 29791u + text[1] * 961u + text[2] * 31u + text[3])  # powers of 31


cdef inline int32_t java_hash(int32_t seed, const uint8_t* text, size_t length) noexcept nogil:
    """Java's String.hashCode of UTF-8 text, continued from `seed`: a hash of the text's UTF-16 units."""
    cdef uint32_t h = <uint32_t>seed
    cdef uint32_t four
    cdef size_t i = 0
    while i + 4 <= length:
        memcpy(&four, text + i, 4)
        if four & 0x80808080u:
            return java_hash_rest(h, text, length, i)
        h = java_hash_four(h, text + i)
        i += 4
    while i < length:
        if text[i] & 0x80:
            return java_hash_rest(h, text, length, i)
        h = 31 * h + text[i]
        i += 1
    return <int32_t>h
