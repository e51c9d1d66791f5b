from libc.stdint cimport int64_t, uint8_t

from cystore._native.scan.log_walk_record cimport walk_state

cdef int walk_run(const uint8_t* p, int64_t begin, int64_t end, walk_state* s) noexcept nogil
cdef int64_t walk_find(const uint8_t* p, int64_t begin, int64_t end, walk_state* s) noexcept nogil
