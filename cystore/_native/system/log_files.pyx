"""Reads the files of a log that has very many short ones: three system calls for each file, and the GIL is free meanwhile.

Names are looked up in a folder that the caller holds open. No link is followed as the last part of a name.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.string cimport memset

cdef extern from "<fcntl.h>" nogil:
    int openat(int folder, const char* name, int flags)
    int O_RDONLY, O_NOFOLLOW, O_CLOEXEC, O_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* buffer, size_t count, int64_t offset)
    int close(int fd)

cdef enum:
    NAME_BYTES = 24     # 20 digits


cdef bint _read(int folder, int64_t base, uint8_t* to, int64_t length) noexcept nogil:
    """One file; what it lacks reads as zeros. False where the system says no: who asks again file by file is told why."""
    cdef char name[NAME_BYTES]
    cdef int64_t done = 0
    cdef ssize_t got = 1
    cdef int fd
    snprintf(name, NAME_BYTES, "%020lld", <long long>base)
    fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
    if fd < 0:
        return False
    while done < length and got > 0:
        got = pread(fd, to + done, <size_t>(length - done), done)
        done += max(got, 0)
    close(fd)
    if got < 0:
        return False
    memset(to + done, 0, <size_t>(length - done))
    return True


def read_files(int folder, int64_t base, int64_t file_bytes, int count, uint8_t[::1] buffer not None):
    """Fills `buffer` with up to `count` files of `file_bytes` that follow each other from `base` on; gives how many were read."""
    cdef int done = 0
    if file_bytes <= 0 or count < 0 or base < 0 or <int64_t>buffer.shape[0] // file_bytes < count or base > INT64_MAX - buffer.shape[0]:
        raise ValueError(f"{count} files of {file_bytes} bytes from {base} on do not fit into {buffer.shape[0]} bytes")
    with nogil:
        while done < count and _read(folder, base + done * file_bytes, &buffer[0] + done * file_bytes, file_bytes):
            done += 1
    return done
