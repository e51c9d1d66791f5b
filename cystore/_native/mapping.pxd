from libc.stdint cimport int64_t, uint8_t

cdef class MappedFile:
    # Valid while this object lives: the mapping ends in __dealloc__ and nowhere else.
    cdef uint8_t* address
    cdef readonly int64_t base          # offset of the first byte in its queue of files
    cdef readonly Py_ssize_t length
    cdef readonly int fd                # -1 when anonymous
    cdef readonly str path
    cdef readonly bint writable
    cdef readonly bint private
    cdef object _map(self, int64_t base, Py_ssize_t length, int protection, int flags)
    cdef object _check(self, Py_ssize_t begin, Py_ssize_t end)
    cdef object _check_writable(self)
