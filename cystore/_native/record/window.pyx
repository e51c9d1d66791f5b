"""The few commit log segments that a reader works on: kernels look records up here and ask for missing segments.

One window serves one call at a time; each reading call takes a window of its own, so no kernel runs on a mapping that
another thread ends.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t

from cystore._native.memory.atomics cimport prefetch_for_read
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_read cimport record_at
from cystore._native.record.record_view cimport RECORD_OK, record_view


cdef inline bint _in_hole(const log_window* window, int64_t offset) noexcept nogil:
    cdef int low = 0
    cdef int high = window.hole_count
    cdef int middle
    while low < high:  # the first hole that ends behind the offset
        middle = (low + high) // 2
        if window.holes[2 * middle + 1] <= offset:
            low = middle + 1
        else:
            high = middle
    return low < window.hole_count and window.holes[2 * low] <= offset


cdef inline bint _find(log_window* window, int64_t offset) noexcept nogil:
    """Makes the segment that holds the offset the latest; False when the window does not have it."""
    cdef int i = window.latest
    if i < window.count and window.segments[i].base <= offset < window.segments[i].end:
        return True
    for i in range(window.count):
        if window.segments[i].base <= offset < window.segments[i].end:
            window.latest = i
            return True
    return False


cdef int window_bytes(log_window* window, int64_t offset, const uint8_t** at, size_t* available) noexcept nogil:
    """Finds the address of the record at a physical offset, and how many bytes may belong to it. Returns RECORD_OK or a
    WindowStatus."""
    cdef const segment_view* segment
    if offset < window.minimum or (window.hole_count and _in_hole(window, offset)):
        return WINDOW_GONE
    if offset >= window.wrote:
        return WINDOW_BEYOND
    if not _find(window, offset):
        return WINDOW_NEED_SEGMENT
    segment = &window.segments[window.latest]
    at[0] = segment.address + (offset - segment.base)
    available[0] = <size_t>(min(segment.end, window.wrote) - offset)
    return RECORD_OK


cdef int window_record(log_window* window, int64_t offset, record_view* v, const uint8_t** at) noexcept nogil:
    """Reads the record at a physical offset, but does not verify it. Returns a RecordStatus or a WindowStatus."""
    cdef size_t available
    cdef int status = window_bytes(window, offset, at, &available)
    if status != RECORD_OK:
        return status
    # A single record is in no cache: these prefetches load its lines at the same time, not one after the other.
    prefetch_for_read(at[0] + 64)
    prefetch_for_read(at[0] + 128)
    prefetch_for_read(at[0] + 192)
    v.topic = NULL
    return record_at(at[0], available, offset, window.segments[window.latest].end, False, v)


cdef int64_t window_behind(const log_window* window, int64_t at) noexcept nogil:
    cdef int i
    if at < window.minimum:
        return window.minimum
    for i in range(window.hole_count):
        if window.holes[2 * i] <= at < window.holes[2 * i + 1]:
            return window.holes[2 * i + 1]
    return at + 1


cdef void window_prefetch(const log_window* window, int64_t offset) noexcept nogil:
    cdef const uint8_t* at
    cdef int i
    if not window.minimum <= offset < window.wrote:
        return
    for i in range(window.count):
        if window.segments[i].base <= offset < window.segments[i].end:
            at = window.segments[i].address + (offset - window.segments[i].base)
            prefetch_for_read(at)
            prefetch_for_read(at + 64)
            prefetch_for_read(at + 128)
            prefetch_for_read(at + 192)
            return


@cython.final
cdef class LogWindow:
    """Segments of one commit log; `segment_for(physical_offset)` maps one more, `holes` are (begin, end), ascending.
    Messages expire by the clock of `control`; without it no message expires."""

    def __cinit__(self, segment_for not None, holes=(), Control control=None):
        cdef int i
        self.segment_for, self.control = segment_for, control
        self.files = []
        self.views = []
        self.holes = <int64_t*>PyMem_Malloc(max(len(holes), 1) * 2 * sizeof(int64_t))
        if self.holes == NULL:
            raise MemoryError
        for i, (begin, end) in enumerate(holes):
            self.holes[2 * i] = begin
            self.holes[2 * i + 1] = end
        self.c.holes = self.holes
        self.c.hole_count = <int>len(holes)

    def __dealloc__(self):
        PyMem_Free(self.numbers)
        PyMem_Free(self.holes)

    cdef int64_t* room(self, int64_t count) except NULL:
        """Scratch space for that many numbers, until the next call."""
        cdef int64_t* grown
        if count > self.numbers_room or self.numbers == NULL:
            grown = <int64_t*>PyMem_Realloc(self.numbers, max(count, 128) * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError
            self.numbers = grown
            self.numbers_room = max(count, 128)
        return self.numbers

    cdef int move(self, int64_t minimum, int64_t wrote) except -1:
        """Takes over the log's bounds, and drops segments below its minimum (they may be unlinked)."""
        cdef int i
        if self.c.minimum != minimum:
            self.files = [file for file in self.files if file.end > minimum]
            self.views = [memoryview(file) for file in self.files]
            self.c.count = <int>len(self.files)
            self.c.latest = self.oldest = 0
            for i in range(self.c.count):
                self._set(i, self.files[i])
        self.c.minimum = minimum
        self.c.wrote = wrote
        if self.control is not None:
            self.keeps_block = self.control.file  # a close meanwhile must not unmap it
            self.c.block = self.control.block
        return 0

    cdef int make_room(self) except -1:
        """Drops all segments when more than half of the places are taken. Then a batch keeps all of its segments, even
        if its records are spread over many."""
        if self.c.count > WINDOW_SEGMENTS // 2:
            self.files = []
            self.views = []
            self.c.count = self.c.latest = self.oldest = 0
        return 0

    cdef int _set(self, int place, MappedFile file) except -1:
        self.c.segments[place].base = file.base
        self.c.segments[place].end = file.base + file.length
        self.c.segments[place].address = file.address
        return 0

    cdef int need(self, int64_t offset) except -1:
        """Adds the segment of `offset`; when all places are taken, it replaces the oldest segment. Raises the errors of
        `segment_for`."""
        cdef MappedFile file = self.segment_for(offset)
        cdef object view = PyMemoryView_FromObject(file)
        cdef int place = self.c.count
        if place < WINDOW_SEGMENTS:
            self.files.append(file)
            self.views.append(view)
            self.c.count += 1
        else:
            place = self.oldest
            self.oldest = (place + 1) % WINDOW_SEGMENTS
            self.files[place], self.views[place] = file, view
        return self._set(place, file)

    cdef int place_of(self, int64_t offset) noexcept:
        return self.c.latest if _find(&self.c, offset) else -1

    cdef MappedFile file_of(self, int64_t offset):
        """The mapped segment of `offset`, None when the window does not have it."""
        return <MappedFile>self.files[self.c.latest] if _find(&self.c, offset) else None
