"""A file descriptor that goes with its object: also when a signal handler's exception drops the object before anybody could close it."""

cimport cython

cdef extern from "<unistd.h>" nogil:
    int close(int fd)


@cython.final
@cython.auto_pickle(False)
cdef class Descriptor:
    """Owns the descriptor `fd`; -1 once it is closed."""

    cdef readonly int fd

    def __cinit__(self, int fd):
        self.fd = fd

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def close(self):
        """Safe to call twice."""
        cdef int fd = self.fd
        self.fd = -1
        if fd >= 0:
            close(fd)
