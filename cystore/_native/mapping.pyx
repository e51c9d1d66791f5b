"""One mapped file. Whoever holds the object (or a view of it) keeps the mapping: nothing is unmapped under a reader."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.errno cimport EINVAL, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

import os

from cystore.errors import StoreError, SyncFailedError

cdef extern from "atomics.h" nogil:
    void touch_byte(uint8_t* p)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int fdatasync(int fd)

cdef extern from "<fcntl.h>" nogil:
    int AT_EMPTY_PATH

cdef extern from "<sys/stat.h>" nogil:
    cdef struct file_status "statx":
        uint32_t stx_mask
        uint32_t stx_nlink
    int statx(int fd, const char* path, int flags, unsigned int mask, file_status* found)
    unsigned int STATX_NLINK

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, int64_t offset)
    int munmap(void* address, size_t length)
    int madvise(void* address, size_t length, int advice)
    int msync(void* address, size_t length, int flags)
    void* MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MS_SYNC

cdef int MADV_POPULATE_WRITE = 23  # Linux 5.14; older C libraries do not name it
cdef Py_ssize_t PAGE = os.sysconf("SC_PAGESIZE")


cdef class MappedFile:
    """A file (or anonymous memory) of fixed length, mapped whole; `base` is its first byte's offset in its queue of files."""

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.address != NULL:
            munmap(self.address, self.length)
        if self.fd >= 0:
            close(self.fd)

    @staticmethod
    def of(int fd, path, int64_t base, Py_ssize_t length, *, bint writable=True, bint private=False,
           bint keep_descriptor=True):
        """Maps an open file of exactly `length` bytes and takes its descriptor over. `private`: writes stay in this process.

        Without `keep_descriptor` the descriptor is closed once the file is mapped: for the many small files whose number
        may exceed what a process can hold open. Raises OSError; StoreError when the file has another length.
        """
        cdef MappedFile self = MappedFile.__new__(MappedFile)
        cdef int flags = MAP_PRIVATE if private else MAP_SHARED
        self.fd = fd
        self.path = os.fspath(path)
        found = os.fstat(self.fd).st_size
        if found != length:
            raise StoreError(f"the file has {found} bytes, expected {length}", path=self.path)
        self._map(base, length, PROT_READ | (PROT_WRITE if writable or private else 0), flags | MAP_NORESERVE)
        self.writable = writable or private
        self.private = private
        if not keep_descriptor:
            close(self.fd)
            self.fd = -1
        return self

    @staticmethod
    def anonymous(int64_t base, Py_ssize_t length, path="(memory)"):
        """Zeroed memory of this process alone, with the interface of a file."""
        cdef MappedFile self = MappedFile.__new__(MappedFile)
        self.path = os.fspath(path)
        self._map(base, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
        self.writable = self.private = True
        return self

    cdef object _map(self, int64_t base, Py_ssize_t length, int protection, int flags):
        cdef void* address
        if length <= 0:
            raise StoreError(f"cannot map {length} bytes", path=self.path)
        address = mmap(NULL, length, protection, flags, self.fd, 0)
        if address == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), self.path)
        self.address = <uint8_t*>address
        self.base = base
        self.length = length

    @property
    def end(self):
        """Offset behind the last byte in the queue of files."""
        return self.base + self.length

    cdef object _check(self, Py_ssize_t begin, Py_ssize_t end):
        if not 0 <= begin <= end <= self.length:
            raise StoreError(f"range {begin}..{end} is outside the file's {self.length} bytes", path=self.path)

    cdef object _check_writable(self):
        if not self.writable:
            raise StoreError("the file is mapped for reading only", path=self.path)

    @property
    def removed(self):
        """True when the file's name is gone: somebody unlinked it, and what is written to it will be lost. Raises OSError.

        Nothing else is asked for: from Linux 6.13 on who was told a file's times makes its next change get a new one, and so
        the next sync a commit of the file system's journal.
        """
        cdef file_status found
        if self.fd < 0:
            return False
        if statx(self.fd, "", AT_EMPTY_PATH, STATX_NLINK, &found):
            raise OSError(errno, os.strerror(errno), self.path)
        return found.stx_nlink == 0

    def populate(self, Py_ssize_t begin, Py_ssize_t end):
        """Faults the pages of [begin, end) in for writing. False where the kernel cannot (before Linux 5.14)."""
        cdef int failed
        self._check(begin, end)
        self._check_writable()
        begin -= begin % PAGE
        if begin == end:
            return True
        with nogil:
            failed = madvise(self.address + begin, end - begin, MADV_POPULATE_WRITE)
        if failed and errno != EINVAL:
            raise OSError(errno, os.strerror(errno), self.path)
        return not failed

    def sync(self):
        """fdatasync of the whole file (msync, which is the same, where no descriptor is kept). Raises SyncFailedError; never call
        it again and believe it after it failed."""
        cdef int failed
        if self.private:
            return
        with nogil:
            failed = fdatasync(self.fd) if self.fd >= 0 else msync(self.address, self.length, MS_SYNC)
        if failed:
            raise SyncFailedError.of(errno, self.path)

    def sync_range(self, Py_ssize_t begin, Py_ssize_t end):
        """msync of the pages of [begin, end): cheaper than `sync` when much else of the file is dirty."""
        cdef int failed = 0
        self._check(begin, end)
        begin -= begin % PAGE
        if not self.private and end > begin:
            with nogil:
                failed = msync(self.address + begin, end - begin, MS_SYNC)
            if failed:
                raise SyncFailedError.of(errno, self.path)

    def redirty(self, Py_ssize_t begin, Py_ssize_t end):
        """Makes every page of [begin, end) dirty again without changing a byte, whoever else writes there."""
        cdef Py_ssize_t at
        self._check(begin, end)
        self._check_writable()
        with nogil:
            at = begin
            while at < end:
                touch_byte(self.address + at)
                at = at - at % PAGE + PAGE

    def zero(self, Py_ssize_t begin, Py_ssize_t end):
        """Fills [begin, end) with zeros."""
        self._check(begin, end)
        self._check_writable()
        with nogil:
            memset(self.address + begin, 0, end - begin)

    def write(self, Py_ssize_t begin, data):
        """Copies `data` to `begin`; for small things outside the hot paths."""
        cdef bytes copy = bytes(data)
        self._check(begin, begin + len(copy))
        self._check_writable()
        memcpy(self.address + begin, <const char*>copy, len(copy))

    def read(self, Py_ssize_t begin, Py_ssize_t count):
        """A copy of `count` bytes at `begin`."""
        self._check(begin, begin + count)
        return (<const char*>self.address + begin)[:count]

    def view(self, Py_ssize_t begin, Py_ssize_t count):
        """A read-only memoryview that keeps the mapping alive."""
        self._check(begin, begin + count)
        return memoryview(self)[begin:begin + count]

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("mapped files are exported for reading only")
        PyBuffer_FillInfo(buffer, self, self.address, self.length, True, flags)

    def __repr__(self):
        return f"<MappedFile {self.path!r} {self.base}+{self.length}>"
