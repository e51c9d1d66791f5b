"""Looks at the files of very many consume queues: a handful of system calls for each queue, without the GIL.

Names are looked up in a folder that the caller holds open. A link as the last part of a name is not followed.
"""

from libc.errno cimport ENOENT, errno
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from array import array

cdef extern from "<fcntl.h>" nogil:
    int AT_SYMLINK_NOFOLLOW

cdef extern from "<sys/stat.h>" nogil:
    cdef struct statx_timestamp:
        int64_t tv_sec
        uint32_t tv_nsec
    cdef struct file_status "statx":
        uint16_t stx_mode
        uint64_t stx_ino
        uint64_t stx_size
        statx_timestamp stx_ctime
    int statx(int fd, const char* path, int flags, unsigned int mask, file_status* found)
    unsigned int STATX_TYPE, STATX_INO, STATX_SIZE, STATX_CTIME
    int S_ISDIR(int mode)
    int S_ISREG(int mode)

cdef enum:
    NAME_BYTES = 64
    NO_FOLDER = 1       # the mark of a queue without a folder


cdef inline uint64_t _mixed(uint64_t mark, uint64_t value) noexcept nogil:
    """Murmur's finalizer over `mark` and `value`."""
    mark = (mark ^ value) * <uint64_t>0xff51afd7ed558ccd
    mark = (mark ^ (mark >> 33)) * <uint64_t>0xc4ceb9fe1a85ec53
    return mark ^ (mark >> 33)


cdef uint64_t _mark(int folder, uint32_t queue_id, int64_t first, int64_t last, int64_t file_bytes) noexcept nogil:
    """The number of one queue, as `marks` returns it."""
    cdef char name[NAME_BYTES]
    cdef file_status found
    cdef unsigned int mask = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_CTIME
    cdef uint64_t mark = 2
    snprintf(name, NAME_BYTES, "%u", queue_id)
    if statx(folder, name, AT_SYMLINK_NOFOLLOW, mask, &found):
        return NO_FOLDER if errno == ENOENT and first > last else 0
    if not S_ISDIR(found.stx_mode):
        return 0
    mark = _mixed(_mixed(_mixed(mark, found.stx_ino), <uint64_t>found.stx_ctime.tv_sec), found.stx_ctime.tv_nsec)
    while first <= last:
        snprintf(name, NAME_BYTES, "%u/%020lld", queue_id, <long long>first)
        if statx(folder, name, AT_SYMLINK_NOFOLLOW, mask, &found) or not S_ISREG(found.stx_mode) \
                or <int64_t>found.stx_size != file_bytes:
            return 0
        mark = _mixed(_mixed(_mixed(mark, found.stx_ino), <uint64_t>found.stx_ctime.tv_sec), found.stx_ctime.tv_nsec)
        first += file_bytes
    return mark if mark > NO_FOLDER else 2


def marks(int folder, const uint32_t[::1] queue_ids, const int64_t[::1] firsts, const int64_t[::1] lasts,
          int64_t file_bytes):
    """A number for each queue of a topic whose folder is open. A change of its files `firsts` to `lasts`, or of the
    names in its folder, changes the number. 0 if a file is missing, or does not have `file_bytes`. `firsts`
    above `lasts`: the queue needs no file."""
    cdef Py_ssize_t count = queue_ids.shape[0]
    cdef Py_ssize_t i
    if firsts.shape[0] != count or lasts.shape[0] != count or file_bytes <= 0:
        raise ValueError("the arrays have different lengths, or file_bytes is not above 0")
    found = array("Q", bytes(8 * count))
    cdef uint64_t[::1] out = found
    with nogil:
        for i in range(count):
            out[i] = _mark(folder, queue_ids[i], firsts[i], lasts[i], file_bytes)
    return found
