from libc.stdint cimport int64_t, uint64_t

from cystore._native.layout cimport *
from cystore._native.memory.locks cimport SharedLocks


cdef class Control(SharedLocks):
    cdef int _forward(self, str name, int64_t* position, int64_t value) except -1
    cdef int _take_over(self, uint64_t pid_namespace, str c_library) except -1
    cdef queue_entry* _slot(self, int64_t slot) except NULL
