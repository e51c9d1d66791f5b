from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "<sys/stat.h>" nogil:
    cdef struct file_status "statx":
        uint64_t stx_ino
        uint32_t stx_dev_major
        uint32_t stx_dev_minor


cdef class MappedFile:
    cdef object __weakref__
    # Valid while this object lives: the mapping ends in __dealloc__ and nowhere else.
    cdef uint8_t* address
    cdef readonly int64_t base          # offset of the first byte in its queue of files
    cdef readonly Py_ssize_t length
    cdef uint64_t inode                 # of the mapped file, 0 when anonymous
    cdef uint32_t device_major
    cdef uint32_t device_minor
    cdef readonly str path
    cdef readonly bint writable
    cdef readonly bint private
    cdef bint copied                    # parts are memory with a copy of the file's bytes
    cdef readonly bint locked           # `lock` keeps its pages in memory
    cdef readonly bint touched          # this process wrote to it (`mark_written`, `write`, `zero`, `store_number`)
    cdef object _map(self, int fd, int64_t base, Py_ssize_t length, int protection, int flags)
    cdef object _check(self, Py_ssize_t begin, Py_ssize_t end)
    cdef object _check_writable(self)
    cdef bint _let_pages_go(self, Py_ssize_t begin, Py_ssize_t end) noexcept nogil
    # Faults the pages of [begin, end) in for writing. Not 0 with an error in errno.
    cdef int populate_pages(self, Py_ssize_t begin, Py_ssize_t end) noexcept nogil
    cdef int sync_pages(self, Py_ssize_t begin, Py_ssize_t end) noexcept nogil


cdef int names_file(int folder, const char* name, MappedFile file) noexcept nogil
cdef bint status_of(const char* path, file_status* found) noexcept nogil
