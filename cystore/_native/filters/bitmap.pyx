"""Filter bitmaps of extended queue units: Bloom filters that say which groups' filters a message may match.

A group has three bits for each topic. A unit's bitmap has the bits of all groups whose filter matches the message, so
a group that lacks one of its bits need not read the record. Source: BloomFilter, BitsArray and
CommitLogDispatcherCalcBitMap of RocketMQ 4.9.3; murmur3_128 of Guava (seed 0).
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cystore._native.filters.program cimport FilterProgram, filter_matches, filter_program
from cystore._native.record.record_view cimport same_text

ctypedef int (*judge)(const filter_program*, const uint8_t*, int) noexcept nogil


# ---------------------------------------------------------------------------------------------------------- the hash


cdef inline uint64_t _turned(uint64_t value, int by) noexcept nogil:
    return (value << by) | (value >> (64 - by))


cdef inline uint64_t _mixed(uint64_t value) noexcept nogil:
    value ^= value >> 33
    value *= <uint64_t>0xFF51AFD7ED558CCD
    value ^= value >> 33
    value *= <uint64_t>0xC4CEB9FE1A85EC53
    return value ^ (value >> 33)


cdef uint64_t _murmur(const uint8_t* text, Py_ssize_t length) noexcept nogil:
    """The first 64 bits of MurmurHash3's 128 (x64 variant). A last block that is not whole is filled with zeros."""
    cdef uint64_t c1 = <uint64_t>0x87C37B91114253D5
    cdef uint64_t c2 = <uint64_t>0x4CF5AD432745937F
    cdef uint64_t h1 = 0
    cdef uint64_t h2 = 0
    cdef uint64_t[2] block
    cdef Py_ssize_t at = 0
    while at < length:
        block[0] = block[1] = 0
        memcpy(block, text + at, min(length - at, <Py_ssize_t>16))  # little-endian, as all that cystore runs on
        h1 ^= _turned(block[0] * c1, 31) * c2
        if length - at >= 16:
            h1 = (_turned(h1, 27) + h2) * 5 + <uint64_t>0x52DCE729
        h2 ^= _turned(block[1] * c2, 33) * c1
        if length - at >= 16:
            h2 = (_turned(h2, 31) + h1) * 5 + <uint64_t>0x38495AB5
        at += 16
    h1 ^= <uint64_t>length
    h2 ^= <uint64_t>length
    h1 += h2
    h2 += h1
    return _mixed(h1) + _mixed(h2)


cdef void _bits_of(bytes name, int count, int32_t* bits) noexcept:
    """Positions of a name in a bitmap of `count` bits. Java's int arithmetic wraps around."""
    cdef uint64_t hashed = _murmur(<const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    cdef uint32_t first = <uint32_t>hashed
    cdef uint32_t second = <uint32_t>(hashed >> 32)
    cdef int32_t combined
    cdef int i
    for i in range(BITMAP_HASHES):
        combined = <int32_t>(first + <uint32_t>(i + 1) * second)
        if combined < 0:
            combined = ~combined
        bits[i] = combined % count


# -------------------------------------------------------------------------------------------------------- the bitmap


cdef inline bint _may_match(const filter_program* program, const uint8_t* properties, int length) noexcept nogil:
    """An error tells nothing about the message, so it counts as a match: the reader then looks at the record."""
    cdef int found
    if program == NULL:
        return True
    found = (<judge>filter_matches)(program, properties, length)
    if found < 0:
        with gil:
            PyErr_Clear()
        return True
    return found != 0


cdef bint bitmap_of(const filter_table* table, const uint8_t* topic, int topic_len, const uint8_t* properties,
                    int length, uint8_t* to) noexcept nogil:
    cdef const topic_filters* row
    cdef const group_filter* one
    cdef int i, at
    for i in range(table.topics_count):
        row = table.topics + i
        if row.topic_len == topic_len and same_text(row.topic, topic, topic_len):
            break
    else:
        return False
    memset(to, 0, table.bitmap_bytes)
    for i in range(row.first, row.first + row.count):
        one = table.filters + i
        if _may_match(one.program, properties, length):
            for at in range(BITMAP_HASHES):
                to[one.bits[at] >> 3] |= <uint8_t>(1 << (one.bits[at] & 7))
    return True


cdef bint bitmap_lacks(const uint8_t* bitmap, const int32_t* bits) noexcept nogil:
    cdef int i
    for i in range(BITMAP_HASHES):
        if not bitmap[bits[i] >> 3] & (1 << (bits[i] & 7)):
            return True
    return False


# ---------------------------------------------------------------------------------------------------------- for Python


cdef int _whole_bytes(int bits) except -1:
    if bits < 8:
        raise ValueError(f"a bitmap of {bits} bits has no byte")
    return bits // 8


@cython.auto_pickle(False)
@cython.final
cdef class GroupBits:
    """The bits of a group for one topic, in bitmaps of `bits` bits."""

    def __cinit__(self, bytes group not None, bytes topic not None, int bits):
        self.bitmap_bytes = _whole_bytes(bits)
        _bits_of(group + b"#" + topic, 8 * self.bitmap_bytes, self.bits)

    @property
    def positions(self):
        """The numbers of the bits, in the order of the hashes; some may be the same."""
        return tuple([self.bits[i] for i in range(BITMAP_HASHES)])

    def is_in(self, bytes bitmap not None):
        """Whether a bitmap has all of them. A bitmap of another length tells nothing: True."""
        return len(bitmap) != self.bitmap_bytes or not bitmap_lacks(
            <const uint8_t*>PyBytes_AS_STRING(bitmap), self.bits)


@cython.auto_pickle(False)
@cython.final
cdef class FilterTable:
    """The filters of groups, each (topic, group, program), for bitmaps of `bits` bits. Without a program every message
    of the topic may match."""

    def __cinit__(self, list filters not None, int bits):
        cdef int i, j, n = 0
        cdef GroupBits group
        cdef FilterProgram program
        cdef bytes topic
        by_topic = {}
        for row in filters:
            by_topic.setdefault(row[0], []).append(row)
        self.kept = [by_topic]
        self.topics = <topic_filters*>PyMem_Calloc(len(by_topic) + 1, sizeof(topic_filters))
        self.filters = <group_filter*>PyMem_Calloc(len(filters) + 1, sizeof(group_filter))
        if self.topics == NULL or self.filters == NULL:
            raise MemoryError
        for i, (topic, rows) in enumerate(by_topic.items()):
            self.topics[i].topic = <const uint8_t*>PyBytes_AS_STRING(topic)
            self.topics[i].topic_len = <int>PyBytes_GET_SIZE(topic)
            self.topics[i].first = n
            self.topics[i].count = <int>len(rows)
            for _, name, program in rows:
                group = GroupBits(name, topic, bits)
                for j in range(BITMAP_HASHES):
                    self.filters[n].bits[j] = group.bits[j]
                self.filters[n].program = NULL if program is None else &program.c
                self.kept.append(program)
                n += 1
        self.c.topics_count = <int>len(by_topic)
        self.c.topics, self.c.filters = self.topics, self.filters
        self.c.bitmap_bytes = _whole_bytes(bits)

    def __dealloc__(self):
        PyMem_Free(self.topics)
        PyMem_Free(self.filters)

    def bitmap(self, bytes topic not None, bytes properties not None):
        """The bitmap of a message with that property string; None for a topic without a filter."""
        cdef bytearray to = bytearray(self.c.bitmap_bytes)
        if not bitmap_of(&self.c, <const uint8_t*>PyBytes_AS_STRING(topic), <int>PyBytes_GET_SIZE(topic),
                         <const uint8_t*>PyBytes_AS_STRING(properties), <int>PyBytes_GET_SIZE(properties),
                         <uint8_t*>PyByteArray_AS_STRING(to)):
            return None
        return bytes(to)
