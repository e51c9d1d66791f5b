from libc.stdint cimport uint8_t, uint32_t

# CRC-32C with the customary inversions: start with 0, feed the result of one piece into the next.
cdef uint32_t crc32c_update(uint32_t value, const uint8_t* data, size_t length) noexcept nogil
# CRC-32C of A+B from the checksums of A and B and the length of B.
cdef uint32_t crc32c_combine(uint32_t first, uint32_t second, size_t second_length) noexcept nogil
# RocketMQ's body checksum: CRC-32 without its top bit (UtilAll.crc32).
cdef uint32_t crc32_body(const uint8_t* data, size_t length) noexcept nogil
