from cystore._native.layout cimport *
from cystore._native.locks cimport SharedLocks


cdef class Control(SharedLocks):
    cdef queue_entry* _slot(self, int64_t slot) except NULL
