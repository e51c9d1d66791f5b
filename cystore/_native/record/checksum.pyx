"""Checksums: CRC-32C (RFC 3720, appendix B.4) for cystore records, CRC-32 for RocketMQ's bodies."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "checksum.h" nogil:
    ctypedef uint32_t (*crc_function)(uint32_t crc, const uint8_t* data, unsigned long length) noexcept
    crc_function crc32c_kernel
    const char* crc32c_choose()
    unsigned long crc32(unsigned long crc, const unsigned char* data, unsigned int length)

cdef extern from "crc_copy.h" nogil:
    enum:
        CRC_READ_MAX
    int crc_copy_known
    uint64_t crc_read(uint64_t begin, const uint8_t* source, size_t length)
    uint64_t crc_copy_words(uint64_t begin, uint8_t* to, const uint8_t* source, size_t length)

cdef uint32_t POLYNOMIAL = 0x82F63B78u
cdef uint32_t[64] _shift_powers  # x^(8 * 2^k) mod P, reflected


cdef inline uint32_t _multiply(uint32_t a, uint32_t b) noexcept nogil:
    """a * b mod P over GF(2), reflected bit order."""
    cdef uint32_t product = 0
    cdef uint32_t mask = 0x80000000u
    while mask:
        if a & mask:
            product ^= b
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)
        mask >>= 1
    return product


cdef uint32_t crc32c_update(uint32_t value, const uint8_t* data, size_t length) noexcept nogil:
    return ~crc32c_kernel(~value, data, length)


cdef uint32_t crc32c_combine(uint32_t first, uint32_t second, size_t second_length) noexcept nogil:
    cdef int power = 0
    while second_length:
        if second_length & 1:
            first = _multiply(_shift_powers[power], first)
        second_length >>= 1
        power += 1
    return first ^ second


cdef uint32_t crc32_body(const uint8_t* data, size_t length) noexcept nogil:
    cdef unsigned long value = 0
    cdef unsigned int piece
    while length:
        piece = <unsigned int>(length if length < 0x40000000 else 0x40000000)
        value = crc32(value, data, piece)
        data += piece
        length -= piece
    return <uint32_t>(value & 0x7FFFFFFF)


def crc32c(const uint8_t[::1] data, uint32_t value=0):
    """CRC-32C of `data`, continuing from `value`."""
    cdef size_t length = data.shape[0]
    if length == 0:
        return value
    with nogil:
        value = crc32c_update(value, &data[0], length)
    return value


def crc32c_of_copy(const uint8_t[::1] data, uint32_t value=0):
    """A copy of `data` and its CRC-32C, continuing from `value`. Where the CPU can, crc_copy.h makes both, as for
    records."""
    cdef size_t length = data.shape[0]
    cdef bytes copied = PyBytes_FromStringAndSize(NULL, length)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(copied)
    if length == 0:
        return copied, value
    if crc_copy_known:
        return copied, ~<uint32_t>crc_copy_words(<uint32_t>~value, to, &data[0], length)
    memcpy(to, &data[0], length)
    return copied, crc32c_update(value, to, length)


def crc32c_as_read(const uint8_t[::1] data, uint32_t value=0):
    """The result of `crc32c`. Where the CPU can, crc_copy.h computes it, as for short records that are read."""
    cdef size_t length = data.shape[0]
    if length and crc_copy_known and length <= CRC_READ_MAX:
        return ~<uint32_t>crc_read(<uint32_t>~value, &data[0], length)
    return crc32c(data, value)


def crc32c_of_two(uint32_t first, uint32_t second, size_t second_length):
    """CRC-32C of the concatenation of two pieces whose checksums are known."""
    return crc32c_combine(first, second, second_length)


def rocketmq_body_crc(const uint8_t[::1] data):
    """RocketMQ's checksum of a body: CRC-32 without its top bit."""
    cdef size_t length = data.shape[0]
    cdef uint32_t value = 0
    if length:
        with nogil:
            value = crc32_body(&data[0], length)
    return value


cdef int _i
_shift_powers[0] = 0x00800000u  # x^8
for _i in range(1, 64):
    _shift_powers[_i] = _multiply(_shift_powers[_i - 1], _shift_powers[_i - 1])

implementation: str = crc32c_choose().decode()
