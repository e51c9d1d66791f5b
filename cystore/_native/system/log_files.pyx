"""Lists and reads the files of a log with very many short files: few system calls for each file, without the GIL.

Names are looked up in a folder that the caller holds open. A link as the last part of a name is not followed.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.errno cimport ENOENT, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset, strcmp, strlen

cdef extern from "<fcntl.h>" nogil:
    int openat(int folder, const char* name, int flags)
    int O_RDONLY, O_NOFOLLOW, O_CLOEXEC, O_NONBLOCK, O_DIRECTORY
    int AT_SYMLINK_NOFOLLOW

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* buffer, size_t count, int64_t offset)
    int close(int fd)

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    cdef struct dirent:
        char* d_name
    DIR* fdopendir(int fd)
    dirent* readdir(DIR* folder)
    int closedir(DIR* folder)

cdef extern from "<sys/stat.h>" nogil:
    cdef struct stat_result "stat":
        unsigned int st_mode
        int64_t st_size
    int fstatat(int folder, const char* name, stat_result* found, int flags)
    bint S_ISREG(unsigned int mode)

cdef enum:
    NAME_BYTES = 24     # 20 digits
    NAME_DIGITS = 20

cdef struct listed_file:
    int64_t base
    int64_t length

cdef struct file_list:
    listed_file* files
    size_t count
    size_t room


cdef bint _read(int folder, int64_t base, uint8_t* to, int64_t length) noexcept nogil:
    """Reads one file; bytes behind its end become zeros. False if a system call fails: the caller can then read each
    file by itself, for its error."""
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
    """Fills `buffer` with up to `count` files of `file_bytes` that follow each other from `base` on; returns the
    number of files that were read."""
    cdef int done = 0
    if file_bytes <= 0 or count < 0 or base < 0 or <int64_t>buffer.shape[0] // file_bytes < count \
            or base > INT64_MAX - buffer.shape[0]:
        raise ValueError(f"{count} files of {file_bytes} bytes from {base} on do not fit into {buffer.shape[0]} bytes")
    with nogil:
        while done < count and _read(folder, base + done * file_bytes, &buffer[0] + done * file_bytes, file_bytes):
            done += 1
    return done


cdef int64_t _base(const char* name) noexcept nogil:
    """The position in a file's name; -1 for another name, also for digits that cannot be a position."""
    cdef uint64_t base = 0
    cdef int at
    if strlen(name) != NAME_DIGITS or name[0] != b"0":
        return -1
    for at in range(1, NAME_DIGITS):    # 19 digits fit into 64 bits
        if not b"0" <= name[at] <= b"9":
            return -1
        base = 10 * base + <uint64_t>(name[at] - <char>b"0")
    return <int64_t>base if base <= <uint64_t>INT64_MAX else -1


cdef bint _add(file_list* found, int64_t base, int64_t length) noexcept nogil:
    cdef listed_file* grown
    if found.count == found.room:
        grown = <listed_file*>PyMem_RawRealloc(found.files, (2 * found.room + 64) * sizeof(listed_file))
        if grown == NULL:
            return False
        found.files = grown
        found.room = 2 * found.room + 64
    found.files[found.count].base = base
    found.files[found.count].length = length
    found.count += 1
    return True


cdef bint _list(DIR* folder, int fd, const char* marker, file_list* found) noexcept nogil:
    """False if the folder has an entry of another kind, or a system call fails."""
    cdef dirent* entry
    cdef stat_result status
    cdef int64_t base
    cdef bint is_marker
    while True:
        errno = 0
        entry = readdir(folder)
        if entry == NULL:
            return errno == 0
        if strcmp(entry.d_name, b".") == 0 or strcmp(entry.d_name, b"..") == 0:
            continue
        is_marker = strcmp(entry.d_name, marker) == 0
        base = 0 if is_marker else _base(entry.d_name)
        if base < 0:
            return False
        if fstatat(fd, entry.d_name, &status, AT_SYMLINK_NOFOLLOW) != 0:
            if errno == ENOENT:     # the cleaner has removed the file
                continue
            return False
        if not S_ISREG(status.st_mode) or (not is_marker and not _add(found, base, status.st_size)):
            return False


def list_files(int folder, bytes marker not None):
    """{base: length} of the files in a folder of log files, without a file named `marker`. None if the folder has an
    entry of another kind, or a system call fails: the caller then looks at each name by itself, for its error."""
    cdef file_list found
    cdef const char* name = marker
    cdef DIR* listing = NULL
    cdef bint complete = False
    cdef int fd
    cdef size_t at
    memset(&found, 0, sizeof(file_list))
    try:
        with nogil:
            fd = openat(folder, b".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            if fd >= 0:
                listing = fdopendir(fd)
                if listing == NULL:
                    close(fd)
                else:
                    complete = _list(listing, fd, name, &found)
                    closedir(listing)
        return {found.files[at].base: found.files[at].length for at in range(found.count)} if complete else None
    finally:
        PyMem_RawFree(found.files)
