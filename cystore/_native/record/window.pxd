from libc.stdint cimport int64_t, uint8_t

from cystore._native.layout cimport (
    PROPERTY_EXPIRES_AT_MS, PROPERTY_EXPIRES_AT_MS_BYTES, SYS_FLAG_EXPIRES, control_block
)
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.property_read cimport derive_due_time, property_find, property_view
from cystore._native.record.record_view cimport record_view

cdef extern from "wallclock.h" nogil:
    int CLOCK_BOOTTIME
    int CLOCK_REALTIME
    int64_t clock_read_ms(int which)
    int64_t store_clock_at(control_block* block, int64_t wall, int64_t boot, bint looks)

cdef enum:
    WINDOW_SEGMENTS = 64

cdef enum WindowStatus:         # beside RecordStatus
    WINDOW_GONE = 16            # below the log's minimum, or in a hole
    WINDOW_BEYOND = 17          # not below the wrote position
    WINDOW_NEED_SEGMENT = 18    # the window does not have its segment

cdef struct segment_view:
    int64_t base
    int64_t end
    const uint8_t* address

# The part of the commit log that a reader has at hand: [minimum, wrote) of the segments mapped here.
cdef struct log_window:
    segment_view[WINDOW_SEGMENTS] segments
    int count
    int latest                  # place of the segment that was used last
    int64_t minimum
    int64_t wrote
    const int64_t* holes        # begin and end of each, ascending
    int hole_count
    control_block* block        # its clock says which messages have expired; NULL: none

cdef int window_bytes(log_window* window, int64_t offset, const uint8_t** at, size_t* available) noexcept nogil
cdef int window_record(log_window* window, int64_t offset, record_view* v, const uint8_t** at) noexcept nogil

# The offset at which the log continues behind `at`, an offset with the status WINDOW_GONE.
cdef int64_t window_behind(const log_window* window, int64_t at) noexcept nogil

# Prefetches the first cache lines of a record, if the window has its segment.
cdef void window_prefetch(const log_window* window, int64_t offset) noexcept nogil


cdef inline bint record_expired(const log_window* window, const record_view* v) noexcept nogil:
    """Whether reads leave a message out: its time is over, by the store's clock. Others cost a test of a bit."""
    cdef property_view expires
    cdef int64_t until
    if not v.sys_flag & <int>SYS_FLAG_EXPIRES or window.block == NULL or not property_find(
            v.properties, v.properties_len, PROPERTY_EXPIRES_AT_MS, PROPERTY_EXPIRES_AT_MS_BYTES, &expires):
        return False
    until = derive_due_time(expires.value, expires.value_len)
    return 0 < until <= store_clock_at(
        window.block, clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME), False)


cdef class LogWindow:
    cdef log_window c
    cdef Control control        # None: no message expires
    cdef MappedFile keeps_block
    cdef list files             # the MappedFile of each segment; these references keep the pointers valid
    cdef list views             # a memoryview of each file: bodies of messages are parts of it
    cdef object segment_for
    cdef int64_t* holes
    cdef int oldest
    cdef int64_t* numbers       # scratch space of the call that has the window
    cdef int64_t numbers_room
    cdef int move(self, int64_t minimum, int64_t wrote) except -1
    cdef int make_room(self) except -1
    cdef int need(self, int64_t offset) except -1
    cdef int _set(self, int place, MappedFile file) except -1
    cdef int64_t* room(self, int64_t count) except NULL
    # Place of the segment of `offset`, -1 when the window does not have it.
    cdef int place_of(self, int64_t offset) noexcept
    cdef MappedFile file_of(self, int64_t offset)
