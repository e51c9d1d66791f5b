from libc.stdint cimport int64_t, uint64_t

from cystore._native.layout cimport LATENCY_BUCKETS
from cystore._native.memory.control cimport Control

cdef enum:
    BUCKETS = 13            # LATENCY_BUCKETS


cdef class ReadCounts:
    cdef Control control
    cdef uint64_t[BUCKETS] latency
    cdef int64_t max_ms, merged_ms, looked_ms
    cdef object look                                      # called by reads, every LOOK_MS at most
    cdef uint64_t new_found, new_messages, new_queries    # since the last merge
    cdef bint fresh                                       # there are counts to merge
    cdef readonly long long found, missed, messages, queries
    cdef int got(self, int64_t since_ms, Py_ssize_t messages) except -1
    cdef int asked(self, Py_ssize_t queries) except -1
    cdef int add(self, int64_t now_ms) except -1
    cdef int look_now(self, int64_t now_ms) except -1
