from libc.stdint cimport int64_t, uint8_t

from cystore._native.read.scan_state cimport scan_state

cdef int scan_run(const uint8_t* p, int64_t begin, int64_t end, scan_state* s) noexcept nogil
cdef int64_t scan_find(const uint8_t* p, int64_t begin, int64_t end, scan_state* s) noexcept nogil
