from libc.stdint cimport uint64_t

from cystore._native.memory.control_fields cimport ControlFields


cdef class Control(ControlFields):
    cdef int _take_over(self, uint64_t pid_namespace, str c_library) except -1
