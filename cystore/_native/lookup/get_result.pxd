from libc.stdint cimport int64_t


cdef class GetResult:
    cdef public object status, messages, raw, record_offsets
    cdef public int64_t next_offset, min_offset, max_offset
    cdef public bint behind, suggest_pulling_from_slave

cdef GetResult get_result(object status, object messages, int64_t next_offset, int64_t min_offset, int64_t max_offset)
