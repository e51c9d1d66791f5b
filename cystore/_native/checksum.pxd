from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

# CRC-32C with the customary inversions: start with 0, feed the result of one piece into the next.
cdef uint32_t crc32c_update(uint32_t value, const uint8_t* data, size_t length) noexcept nogil
# CRC-32C of A+B from those of A and B and the length of B.
cdef uint32_t crc32c_combine(uint32_t first, uint32_t second, size_t second_length) noexcept nogil
# RocketMQ's body checksum: CRC-32 without its top bit (UtilAll.crc32).
cdef uint32_t crc32_body(const uint8_t* data, size_t length) noexcept nogil

# The checksum of eight bytes that come again and again: size and magic of the records of one log. All zero at first.
cdef struct head_checksum:
    uint64_t bytes
    uint32_t checksum

cdef inline uint32_t crc32c_head(head_checksum* last, const uint8_t* p) noexcept nogil:
    cdef uint64_t bytes
    memcpy(&bytes, p, 8)
    if bytes != last.bytes or bytes == 0:
        last.bytes = bytes
        last.checksum = crc32c_update(0, p, 8)
    return last.checksum
