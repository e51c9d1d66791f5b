"""One mapped file. A reference to the object, or a view of it, keeps the mapping: no reader loses its memory."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINVAL, ENOENT, ENOTDIR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import os
from weakref import WeakKeyDictionary

from cystore.errors import StoreError, SyncFailedError

cdef extern from "atomics.h" nogil:
    void touch_byte(uint8_t* p)
    void store_u32(uint32_t* p, uint32_t value)
    void store_u64(uint64_t* p, uint64_t value)

cdef extern from "<endian.h>" nogil:
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* buffer, size_t count, int64_t offset)

cdef extern from "<fcntl.h>" nogil:
    int AT_FDCWD, AT_SYMLINK_NOFOLLOW

cdef extern from "<sys/stat.h>" nogil:
    int statx(int fd, const char* path, int flags, unsigned int mask, file_status* found)
    unsigned int STATX_INO

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, int64_t offset)
    int munmap(void* address, size_t length)
    int madvise(void* address, size_t length, int advice)
    int msync(void* address, size_t length, int flags)
    void* MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MS_SYNC
    int MADV_NORMAL, MADV_RANDOM, MADV_DONTNEED, MADV_WILLNEED
    int munlock(const void* address, size_t length)
    int mincore(void* address, size_t length, unsigned char* pages)

cdef extern from "<sys/syscall.h>" nogil:
    long SYS_mlock2
    long syscall(long number, void* address, size_t length, int flags)

cdef int MLOCK_ONFAULT = 1      # Linux 4.4
cdef int MADV_PAGEOUT = 21      # Linux 5.4

cdef int MADV_POPULATE_WRITE = 23  # Linux 5.14; older C libraries do not name it
cdef Py_ssize_t PAGE = os.sysconf("SC_PAGESIZE")
cdef Py_ssize_t LONG_SYNC = 64 * 1024  # bytes; a shorter sync costs less than the page faults after it

# The ranges of a sparse file that are mapped, by its MappedFile; the rest is memory.
cdef object _parts = WeakKeyDictionary()

cdef enum:
    COPIED_BELOW = 64 << 10   # a shorter range of a sparse file is copied, not mapped
    UNMAP_WITH_GIL = 1 << 20  # a shorter mapping ends sooner than a thread gets the GIL back
    UNMAP_STEP = 16 << 20     # a step takes about 1 ms; between two steps other threads may map and fault


cdef int names_file(int folder, const char* name, MappedFile file) noexcept nogil:
    """1 if `name` in an open folder is this file, 0 if it is another file; -1 with an error in errno.

    statx asks for the inode only. Since Linux 6.13 a look at a file's times makes the next change set a new time, and
    that makes the next sync commit the file system's journal."""
    cdef file_status found
    if statx(folder, name, AT_SYMLINK_NOFOLLOW, STATX_INO, &found):
        return -1
    return (found.stx_ino == file.inode and found.stx_dev_major == file.device_major
            and found.stx_dev_minor == file.device_minor)


cdef bint status_of(const char* path, file_status* found) noexcept nogil:
    """Finds the inode and the device of a path; False if there is an error."""
    return statx(AT_FDCWD, path, 0, STATX_INO, found) == 0


# Mappings of this process (MappedFile.TOTAL_MAPPED_FILES, TOTAL_MAPPED_VIRTUAL_MEMORY); changed under the GIL.
cdef int64_t _files = 0, _bytes = 0


def mapped_files():
    """The number of files that this process has mapped now, for all its stores; views keep some of them mapped."""
    return _files


def mapped_bytes():
    """The length of all these mappings together."""
    return _bytes


cdef void _unmap(uint8_t* address, Py_ssize_t length) noexcept nogil:
    """Ends a mapping piece by piece: the kernel holds up every other thread's mappings and page faults during each
    piece."""
    cdef Py_ssize_t step
    while length > 0:
        step = min(length, <Py_ssize_t>UNMAP_STEP)
        munmap(address, step)
        address += step
        length -= step


cdef class MappedFile:
    """A file (or anonymous memory) of fixed length, mapped whole; `base` is its first byte's offset in its queue of
    files."""

    def __dealloc__(self):
        global _files, _bytes
        if self.address == NULL:
            return
        _files -= 1
        _bytes -= self.length
        if self.length < UNMAP_WITH_GIL:
            munmap(self.address, self.length)
        else:
            with nogil:
                _unmap(self.address, self.length)

    @staticmethod
    def of(int fd, path, int64_t base, Py_ssize_t length, *, bint writable=True, bint private=False):
        """Maps an open file of exactly `length` bytes. `private`: writes stay in this process.

        The descriptor may be closed afterwards: the kernel keeps the open file for the mapping, and msync reports the
        errors that fsync of the descriptor would report. Raises OSError; StoreError if the file has another length.
        """
        cdef MappedFile self = MappedFile.__new__(MappedFile)
        cdef int flags = MAP_PRIVATE if private else MAP_SHARED
        self.path = os.fspath(path)
        status = os.fstat(fd)
        if status.st_size != length:
            raise StoreError(f"the file has {status.st_size} bytes, expected {length}", path=self.path)
        self._map(fd, base, length, PROT_READ | (PROT_WRITE if writable or private else 0), flags | MAP_NORESERVE)
        self.device_major, self.device_minor = os.major(status.st_dev), os.minor(status.st_dev)
        self.inode = status.st_ino
        self.writable = writable or private
        self.private = private
        return self

    @staticmethod
    def of_sparse(int fd, path, int64_t base, Py_ssize_t length, data, *, bint private=False):
        """Maps a sparse file that no process changes meanwhile; only its ranges `data` are on the disk.

        Zeroed memory stands for the rest, so a page fault never asks the file system for space. Short ranges are
        copied, so the number of mappings stays small. Raises the errors of `of`.
        """
        cdef MappedFile self = MappedFile.__new__(MappedFile)
        cdef int protection = PROT_READ | (PROT_WRITE if private else 0)
        cdef int flags = MAP_FIXED | MAP_NORESERVE | (MAP_PRIVATE if private else MAP_SHARED)
        cdef Py_ssize_t begin, end, done
        self.path = os.fspath(path)
        status = os.fstat(fd)
        if status.st_size != length:
            raise StoreError(f"the file has {status.st_size} bytes, expected {length}", path=self.path)
        self._map(-1, base, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
        self.copied = True
        parts = _parts[self] = []
        for begin, end in data:
            self._check(begin, end)
            if begin % PAGE == 0 and end - begin >= <Py_ssize_t>COPIED_BELOW:
                if mmap(self.address + begin, end - begin, protection, flags, fd, begin) == MAP_FAILED:
                    raise OSError(errno, os.strerror(errno), self.path)
                parts.append((begin, end))
                continue
            while begin < end:
                done = pread(fd, self.address + begin, end - begin, begin)
                if done < 0:
                    raise OSError(errno, os.strerror(errno), self.path)
                if done == 0:
                    break
                begin += done
        self.device_major, self.device_minor = os.major(status.st_dev), os.minor(status.st_dev)
        self.inode = status.st_ino
        self.writable = self.private = private
        return self

    @staticmethod
    def anonymous(int64_t base, Py_ssize_t length, path="(memory)"):
        """Zeroed memory of this process alone, with the interface of a file."""
        cdef MappedFile self = MappedFile.__new__(MappedFile)
        self.path = os.fspath(path)
        self._map(-1, base, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
        self.writable = self.private = True
        return self

    cdef object _map(self, int fd, int64_t base, Py_ssize_t length, int protection, int flags):
        global _files, _bytes
        cdef void* address
        if length <= 0:
            raise StoreError(f"cannot map {length} bytes", path=self.path)
        address = mmap(NULL, length, protection, flags, fd, 0)
        if address == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), self.path)
        _files += 1
        _bytes += length
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
    def in_memory(self):
        """True for anonymous memory, which has no file on a disk."""
        return self.inode == 0

    def is_at(self, int folder, name):
        """Whether `name` in an open folder (or AT_FDCWD) is this file. If another process has unlinked or replaced it,
        later writes to the mapping are lost. Raises OSError."""
        cdef bytes encoded = os.fsencode(name)
        cdef int same = 1 if self.inode == 0 else names_file(folder, encoded, self)
        if same < 0 and errno != ENOENT and errno != ENOTDIR:
            raise OSError(errno, os.strerror(errno), self.path)
        return same == 1

    def expect_scattered(self, Py_ssize_t begin=0):
        """Tells the kernel that accesses from `begin` on are scattered, so that a page fault reads one page. Otherwise
        each fault reads up to megabytes ahead, and fills the page cache even where the file has no blocks yet. Raises
        OSError."""
        self._check(begin, self.length)
        begin -= begin % PAGE
        if begin < self.length and madvise(self.address + begin, self.length - begin, MADV_RANDOM):
            raise OSError(errno, os.strerror(errno), self.path)

    def expect_in_order(self):
        """Ends `expect_scattered`. Raises OSError."""
        if madvise(self.address, self.length, MADV_NORMAL):
            raise OSError(errno, os.strerror(errno), self.path)

    def populate(self, Py_ssize_t begin, Py_ssize_t end):
        """Faults the pages of [begin, end) in for writing. False where the kernel cannot (before Linux 5.14)."""
        cdef int failed
        self._check(begin, end)
        self._check_writable()
        with nogil:
            failed = self.populate_pages(begin, end)
        if failed and errno != EINVAL:
            raise OSError(errno, os.strerror(errno), self.path)
        return not failed

    cdef int populate_pages(self, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
        begin -= begin % PAGE
        return madvise(self.address + begin, end - begin, MADV_POPULATE_WRITE) if begin < end else 0

    def lock(self):
        """Keeps each page of the file in memory after its first access; untouched pages are not read in. Raises
        OSError, for example if RLIMIT_MEMLOCK is too small."""
        cdef long failed
        with nogil:
            failed = syscall(SYS_mlock2, self.address, self.length, MLOCK_ONFAULT)
        if failed:
            raise OSError(errno, os.strerror(errno), self.path)
        self.locked = True

    def unlock(self):
        """Ends `lock`. Raises OSError."""
        cdef int failed
        with nogil:
            failed = munlock(self.address, self.length)
        if failed:
            raise OSError(errno, os.strerror(errno), self.path)
        self.locked = False

    def will_need(self, Py_ssize_t begin, Py_ssize_t end):
        """Asks the kernel to have the pages of [begin, end) in memory soon. Raises OSError."""
        cdef int failed
        self._check(begin, end)
        begin -= begin % PAGE
        with nogil:
            failed = madvise(self.address + begin, end - begin, MADV_WILLNEED)
        if failed:
            raise OSError(errno, os.strerror(errno), self.path)

    def pages_in_memory(self):
        """A byte for each page of the file: 1 where the page cache has it. Raises OSError."""
        cdef bytes pages = PyBytes_FromStringAndSize(NULL, (self.length + PAGE - 1) // PAGE)
        cdef unsigned char* found = <unsigned char*>PyBytes_AS_STRING(pages)
        cdef Py_ssize_t i
        cdef int failed
        with nogil:
            failed = mincore(self.address, self.length, found)
            for i in range((self.length + PAGE - 1) // PAGE):
                found[i] &= 1
        if failed:
            raise OSError(errno, os.strerror(errno), self.path)
        return pages

    def page_out(self, Py_ssize_t first, Py_ssize_t last):
        """Takes pages [first, last) of a shared file out of the page cache, as far as no other process has them mapped.
        False where the kernel cannot (before Linux 5.4, or if the file is locked)."""
        cdef Py_ssize_t begin = first * PAGE, end = min(last * PAGE, self.length)
        cdef int failed
        self._check(begin, end)
        if self.private or self.copied or self.inode == 0:
            return False
        with nogil:
            failed = madvise(self.address + begin, end - begin, MADV_PAGEOUT)
        if failed and errno != EINVAL:
            raise OSError(errno, os.strerror(errno), self.path)
        return not failed

    cdef bint _let_pages_go(self, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
        """`let_pages_go` for the whole pages of [begin, end). False, with errno set, if the kernel refuses."""
        begin += (PAGE - begin % PAGE) % PAGE
        end -= end % PAGE
        if self.private or self.copied or self.inode == 0 or self.locked or end <= begin:
            return True
        return madvise(self.address + begin, end - begin, MADV_DONTNEED) == 0

    def let_pages_go(self, Py_ssize_t end):
        """Removes the file's pages below `end` from this process's memory. They stay in the page cache with their
        changes; the next access is a page fault. What is no page of a file stays: a private mapping that was written
        to, copied parts, anonymous memory. So does a locked mapping. Raises OSError."""
        cdef bint done = True
        cdef Py_ssize_t first, last
        self._check(0, end)
        if self.locked or self.inode == 0 or (self.private and self.touched):
            return
        if self.private or self.copied:
            # With the GIL: a writer calls `mark_written` before its first byte, so it cannot begin in between.
            for first, last in _parts.get(self, ((0, self.length),)):
                last = min(last, end)
                last -= last % PAGE
                if first < last and madvise(self.address + first, last - first, MADV_DONTNEED):
                    done = False
        else:
            with nogil:
                done = self._let_pages_go(0, end)
        if not done:
            raise OSError(errno, os.strerror(errno), self.path)

    def sync(self):
        """msync of the whole file. Raises SyncFailedError. After a failure no later success can be trusted."""
        cdef int failed
        if self.private:
            return
        with nogil:
            failed = msync(self.address, self.length, MS_SYNC)
        if failed:
            raise SyncFailedError.of(errno, self.path)

    def sync_range(self, Py_ssize_t begin, Py_ssize_t end):
        """msync of the pages of [begin, end): cheaper than `sync` when much else of the file is dirty."""
        cdef int failed = 0
        self._check(begin, end)
        if not self.private and end > begin:
            with nogil:
                failed = self.sync_pages(begin, end)
            if failed:
                raise SyncFailedError.of(failed, self.path)

    cdef int sync_pages(self, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
        """msync of the pages of [begin, end) of a shared file. Returns 0, or the error.

        The kernel write-protects each mapped page that it writes out, and interrupts the other processors for each page
        while threads of this process run there. So a long range leaves this process's memory first, all at once."""
        begin -= begin % PAGE
        if end - begin >= LONG_SYNC:
            self._let_pages_go(begin, end)  # if the kernel refuses, the sync only takes longer
        return errno if msync(self.address + begin, end - begin, MS_SYNC) else 0

    def redirty(self, Py_ssize_t begin, Py_ssize_t end):
        """Makes every page of [begin, end) dirty again without changing a byte, also while other processes write."""
        cdef Py_ssize_t at
        self._check(begin, end)
        self._check_writable()
        with nogil:
            at = begin
            while at < end:
                touch_byte(self.address + at)
                at = at - at % PAGE + PAGE

    def mark_written(self):
        """Notes that the caller writes here. Changes of a private mapping exist nowhere else, so it must stay
        mapped."""
        self.touched = True

    def zero(self, Py_ssize_t begin, Py_ssize_t end):
        """Fills [begin, end) with zeros."""
        self._check(begin, end)
        self._check_writable()
        self.touched = True
        with nogil:
            memset(self.address + begin, 0, end - begin)

    def write(self, Py_ssize_t begin, data):
        """Copies `data` to `begin`; for small data outside the hot paths. `write` and `read` fault pages in without
        the GIL."""
        cdef bytes copy = bytes(data)
        cdef const char* source = PyBytes_AS_STRING(copy)
        cdef Py_ssize_t length = len(copy)
        self._check(begin, begin + length)
        self._check_writable()
        self.touched = True
        with nogil:
            memcpy(self.address + begin, source, length)

    def store_number(self, Py_ssize_t at, int64_t value, int width):
        """Stores a big-endian number of 4 or 8 bytes with one store: no reader and no power cut sees half of it."""
        self._check(at, at + width)
        self._check_writable()
        if width != 4 and width != 8 or at % width:
            raise StoreError(f"a number of {width} bytes cannot stand at {at}", path=self.path)
        self.touched = True
        if width == 4:
            if not 0 <= value <= <int64_t>0xFFFFFFFF:
                raise OverflowError(f"{value} does not fit 4 bytes")
            store_u32(<uint32_t*>(self.address + at), htobe32(<uint32_t>value))
        else:
            store_u64(<uint64_t*>(self.address + at), htobe64(<uint64_t>value))

    def read(self, Py_ssize_t begin, Py_ssize_t count):
        """A copy of `count` bytes at `begin`."""
        cdef bytes copy
        cdef char* to
        self._check(begin, begin + count)
        copy = PyBytes_FromStringAndSize(NULL, count)
        to = PyBytes_AS_STRING(copy)
        with nogil:
            memcpy(to, self.address + begin, count)
        return copy

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
