"""The commit log segments that a reader works on: kernels look records up here and ask for missing segments.

One window serves one call at a time; each reading call takes a window of its own, so no kernel runs on a mapping that
another thread ends.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t

from cystore._native.memory.atomics cimport prefetch_for_read
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_read cimport record_at
from cystore._native.record.record_view cimport RECORD_OK, record_view

from cystore.errors import StoreResourceError

cdef enum:
    PLACES = 8      # of a new window


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


cdef inline bint _has(const log_window* window, int place, int64_t offset) noexcept nogil:
    return window.segments[place].base <= offset < window.segments[place].end


cdef inline int _home(const log_window* window, int64_t offset) noexcept nogil:
    """The only place where the segment of an offset may be, if segments have one length."""
    return <int>(<uint64_t>offset // <uint64_t>window.segment_bytes & <uint64_t>(window.room - 1))


cdef inline bint _always_together(const log_window* window, int place, int64_t offset) noexcept nogil:
    """Whether a segment is at that place whose place is that of the offset's segment in the largest window, too."""
    cdef int64_t bytes = window.segment_bytes
    return window.segments[place].end != 0 \
        and (offset // bytes - window.segments[place].base // bytes) % <int64_t>WINDOW_SEGMENTS == 0


cdef inline int _place(const log_window* window, int64_t offset) noexcept nogil:
    """Place of the segment that holds the offset; -1 when the window does not have it."""
    cdef int i = window.latest
    if _has(window, i, offset):
        return i
    if window.segment_bytes:
        i = _home(window, offset)
        return i if _has(window, i, offset) else -1
    for i in range(window.room):
        if _has(window, i, offset):
            return i
    return -1


cdef inline bint _find(log_window* window, int64_t offset) noexcept nogil:
    """Makes the segment that holds the offset the latest; False when the window does not have it."""
    cdef int place = _place(window, offset)
    if place < 0:
        return False
    window.latest = place
    return True


cdef inline void _fetch_lines(const uint8_t* at) noexcept nogil:
    """Fetches the cache lines behind the first one of a record of up to 256 bytes, wherever it begins in a line."""
    prefetch_for_read(at + 64)
    prefetch_for_read(at + 128)
    prefetch_for_read(at + 192)
    prefetch_for_read(at + 256)


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
    _fetch_lines(at[0])
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


cdef const uint8_t* window_address(const log_window* window, int64_t offset) noexcept nogil:
    cdef int place
    if not window.minimum <= offset < window.wrote:
        return NULL
    place = _place(window, offset)
    if place < 0:
        return NULL
    return window.segments[place].address + (offset - window.segments[place].base)


cdef void window_prefetch(const log_window* window, int64_t offset) noexcept nogil:
    cdef const uint8_t* at = window_address(window, offset)
    if at != NULL:
        prefetch_for_read(at)
        _fetch_lines(at)


@cython.final
cdef class Drops:
    """How often a store's budget dropped mappings: then windows let go of them, too."""

    def __cinit__(self):
        self.spare = []

    def empties(self, list windows not None):
        """From now on each drop empties this list of windows that no call uses."""
        self.spare.append(windows)

    def dropped(self):
        """Counts once more."""
        cdef list windows
        self.count += 1
        for windows in self.spare:
            windows.clear()


@cython.final
cdef class LogWindow:
    """Segments of one commit log; `segment_for(physical_offset)` maps one more, `holes` are (begin, end), ascending.
    Messages expire by the clock of `control`; without it no message expires.

    `segment_bytes`: the length of each segment. The window keeps all segments that it was asked for, up to
    WINDOW_SEGMENTS, until `drops` counts: then it keeps them only if they are few. Without a length (0) the window
    keeps the last WINDOW_PARTS files, which may be parts of segments. It lets all go if the system has no room for one
    more.
    """

    def __cinit__(self, segment_for not None, holes=(), Control control=None, int64_t segment_bytes=0,
                  Drops drops=None):
        cdef int i
        self.segment_for, self.control, self.drops = segment_for, control, drops
        self.seen_drops = 0 if drops is None else drops.count
        self.c.segment_bytes = max(segment_bytes, 0)
        self.files = []
        self.views = []
        self._make_places(PLACES)
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
        PyMem_Free(self.c.segments)

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
        """Begins a call: takes over the log's bounds, and drops segments below its minimum (they may be unlinked).

        It drops all, if they are more than half of WINDOW_PARTS, when the store's budget dropped mappings since the
        last call. So it does with parts of segments: then a batch keeps all of its parts, even if its records are
        spread over many."""
        if self.c.count > WINDOW_PARTS // 2 and self.c.segment_bytes == 0 or self._is_over_budget():
            self._clear(INT64_MAX)
        elif self.c.minimum != minimum:
            self._clear(minimum)
        if self.drops is not None:
            self.seen_drops = self.drops.count
        self.c.minimum = minimum
        self.c.wrote = wrote
        if self.control is not None:
            self.keeps_block = self.control.file  # a close meanwhile must not unmap it
            self.c.block = self.control.block
        return 0

    cdef bint _is_over_budget(self) noexcept:
        """Whether the store's budget dropped mappings, and the window has many segments."""
        return self.drops is not None and self.drops.count != self.seen_drops \
            and self.c.segment_bytes != 0 and self.c.count > WINDOW_PARTS // 2

    cdef int _clear(self, int64_t below) except -1:
        """Frees the places of segments that end at or below an offset."""
        cdef int i
        for i in range(self.c.room):
            if self.files[i] is not None and self.c.segments[i].end <= below:
                self.c.segments[i].base = self.c.segments[i].end = 0
                self.c.segments[i].address = NULL
                self.c.count -= 1
                self.files[i] = self.views[i] = None
        return 0

    cdef int _make_places(self, int room) except -1:
        """More places; each segment moves to its new one."""
        cdef list files = self.files, views = self.views
        cdef int i, place, count = <int>len(files)
        cdef segment_view* segments = <segment_view*>PyMem_Calloc(room, sizeof(segment_view))
        if segments == NULL:
            raise MemoryError
        PyMem_Free(self.c.segments)
        self.c.segments = segments
        self.c.room = room
        self.c.count = self.c.latest = 0
        self.files, self.views = [None] * room, [None] * room
        for i in range(count):
            if files[i] is not None:
                place = _home(&self.c, (<MappedFile>files[i]).base) if self.c.segment_bytes else i
                self._put(place, <MappedFile>files[i], views[i])
        return 0

    cdef int _put(self, int place, MappedFile file, object view) except -1:
        self.c.count += self.files[place] is None
        self.files[place], self.views[place] = file, view
        self.c.segments[place].base = file.base
        self.c.segments[place].end = file.base + file.length
        self.c.segments[place].address = file.address
        return 0

    cdef int _place_for(self, MappedFile file) except -1:
        """The place of one more file, which may be that of another one, if there may not be more places."""
        cdef int i
        if self.c.segment_bytes and (file.length != self.c.segment_bytes or file.base % self.c.segment_bytes):
            self.c.segment_bytes = 0  # the files that are here stay
        if self.c.segment_bytes:
            while True:
                i = _home(&self.c, file.base)
                if self.files[i] is None or _always_together(&self.c, i, file.base):
                    return i
                self._make_places(2 * self.c.room)
        for i in range(self.c.room):
            if self.files[i] is None:
                return i
        if self.c.room < WINDOW_PARTS:
            i = self.c.room
            self._make_places(2 * i)
            return i
        i = self.oldest & self.c.room - 1
        self.oldest = i + 1
        return i

    cdef bint is_full(self, int64_t offset) noexcept:
        """Whether `need` for that offset would let go of a segment that is here."""
        if self.c.segment_bytes:
            return self._is_over_budget() or _always_together(&self.c, _home(&self.c, offset), offset)
        return self.c.room >= WINDOW_PARTS and self.c.count == self.c.room

    cdef int need(self, int64_t offset, bint keeps=False) except -1:
        """Adds the segment of `offset`. It replaces another one if the window is full, and all if they are over the
        budget, or if there is no room for one more. `keeps`: the caller asked `is_full`, and needs the segments that
        are here. Raises the errors of `segment_for`."""
        cdef MappedFile file
        if not keeps and self._is_over_budget():
            self._clear(INT64_MAX)
            self.seen_drops = self.drops.count
        try:
            file = self.segment_for(offset)
        except StoreResourceError:
            if keeps or self.c.count == 0:
                raise
            self._clear(INT64_MAX)
            file = self.segment_for(offset)
        return self._put(self._place_for(file), file, PyMemoryView_FromObject(file))

    cdef int place_of(self, int64_t offset) noexcept:
        return self.c.latest if _find(&self.c, offset) else -1

    cdef MappedFile file_of(self, int64_t offset):
        """The mapped segment of `offset`, None when the window does not have it."""
        return <MappedFile>self.files[self.c.latest] if _find(&self.c, offset) else None
