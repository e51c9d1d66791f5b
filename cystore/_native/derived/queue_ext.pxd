from libc.stdint cimport int64_t, uint8_t

cdef enum ExtStatus:
    EXT_OK = 0
    EXT_END = 1         # the file has no more units: end mark, or zeros
    EXT_BAD = 2         # the lengths contradict each other or lead out of the file
    EXT_NO_ROOM = 3     # the unit belongs into the next file

cdef enum:
    EXT_END_BYTES = 4       # a unit leaves room for the end mark of its file

cdef struct ext_view:
    int size
    int64_t tags_code
    int64_t store_timestamp
    const uint8_t* bitmap
    int bitmap_len

cdef bint ext_is_address(int64_t tags_code) noexcept nogil
cdef int64_t ext_address(int64_t position) noexcept nogil
cdef int64_t ext_position(int64_t address) noexcept nogil
cdef int ext_read(const uint8_t* p, size_t available, ext_view* v) noexcept nogil
cdef int ext_put(uint8_t* p, size_t room, int64_t tags_code, int64_t store_timestamp, const uint8_t* bitmap,
                 int bitmap_len, int* size) noexcept nogil
