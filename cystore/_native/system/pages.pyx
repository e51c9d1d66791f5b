"""Pages of a file that come into memory by system calls: a whole range without the GIL, which is taken once for it. And
how many pages of files this process has."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t

import os

cdef extern from "<fcntl.h>" nogil:
    int openat(int folder, const char* path, int flags)
    int O_RDONLY, O_WRONLY, O_CLOEXEC, AT_FDCWD

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int fd, const void* data, size_t count, int64_t at)
    Py_ssize_t read(int fd, void* data, size_t count)
    long sysconf(int name)
    int _SC_PAGESIZE
    int close(int fd)

cdef extern from "<sys/sendfile.h>" nogil:
    Py_ssize_t sendfile(int to, int fd, int64_t* at, size_t count)

cdef extern from "<stdlib.h>" nogil:
    long long strtoll(const char* text, char** end, int base)

cdef enum:
    PIECE_BYTES = 64 << 10
    STATM_BYTES = 160       # seven numbers of at most 20 digits

cdef uint8_t[PIECE_BYTES] _zeros  # nothing writes there


def write_zeros(int fd, int64_t begin, int64_t end):
    """Writes zeros into [begin, end) of an open file, in pieces of 64 KiB that begin at a multiple of their length. So
    the page cache gets pages of that size, and a page fault maps one as a whole. Raises OSError; then some of it may be
    written."""
    cdef int code
    with nogil:
        code = _write_zeros(fd, begin, end)
    if code:
        raise OSError(code, os.strerror(code))


cdef int _write_zeros(int fd, int64_t begin, int64_t end) noexcept nogil:
    """0, or the error."""
    cdef Py_ssize_t count
    while begin < end:
        count = pwrite(fd, _zeros, min(end - begin, PIECE_BYTES - begin % PIECE_BYTES), begin)
        if count < 0 and errno != EINTR:
            return errno
        begin += max(count, 0)
    return 0


def read_pages(int fd, int64_t begin, int64_t end):
    """Reads [begin, end) of an open file, as far as the file goes, for the page cache alone: the kernel gives the pages
    to /dev/null, so it copies nothing. Raises OSError."""
    cdef int code, nothing
    with nogil:
        nothing = openat(AT_FDCWD, "/dev/null", O_WRONLY | O_CLOEXEC)
        code = _read_pages(fd, nothing, begin, end) if nothing >= 0 else errno
        if nothing >= 0:
            close(nothing)
    if code:
        raise OSError(code, os.strerror(code))


cdef int _read_pages(int fd, int nothing, int64_t begin, int64_t end) noexcept nogil:
    """0, or the error."""
    cdef Py_ssize_t count
    while begin < end:
        count = sendfile(nothing, fd, &begin, end - begin)
        if count == 0:
            break
        if count < 0 and errno != EINTR:
            return errno
    return 0


def resident_file_bytes():
    """The part of this process's resident size that is pages of files, libraries included: the third number of
    /proc/self/statm. Raises OSError."""
    cdef char[STATM_BYTES + 1] text
    cdef char* at = text
    cdef Py_ssize_t count = 0
    cdef int fd, code, i
    cdef long long pages = 0
    with nogil:
        fd = openat(AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC)
        code = errno if fd < 0 else 0
        if fd >= 0:
            count = read(fd, text, STATM_BYTES)
            code = errno if count < 0 else 0
            close(fd)
        if not code:
            text[count] = 0
            for i in range(3):
                pages = strtoll(at, &at, 10)
    if code:
        raise OSError(code, os.strerror(code), "/proc/self/statm")
    return pages * sysconf(_SC_PAGESIZE)
