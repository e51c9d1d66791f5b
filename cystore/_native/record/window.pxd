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
    WINDOW_PARTS = 64           # the most places of a window whose files have different lengths
    WINDOW_SEGMENTS = 16384     # the most places of any other window

cdef enum WindowStatus:         # beside RecordStatus
    WINDOW_GONE = 16            # below the log's minimum, or in a hole
    WINDOW_BEYOND = 17          # not below the wrote position
    WINDOW_NEED_SEGMENT = 18    # the window does not have its segment

cdef struct segment_view:
    int64_t base
    int64_t end
    const uint8_t* address

# The part of the commit log that a reader has at hand: [minimum, wrote) of the segments mapped here.
#
# Segments have one length, so the number of a segment, modulo the number of places, is its place: a window of any size
# finds a segment at once. Parts of segments that are read with `pread` may be at any place.
cdef struct log_window:
    segment_view* segments      # a free place has base and end 0
    int room                    # places; a power of two
    int count                   # taken places
    int latest                  # place of the segment that was used last
    int64_t segment_bytes       # 0: any file may be at any place
    int64_t minimum
    int64_t wrote
    const int64_t* holes        # begin and end of each, ascending
    int hole_count
    control_block* block        # its clock says which messages have expired; NULL: none

cdef int window_bytes(log_window* window, int64_t offset, const uint8_t** at, size_t* available) noexcept nogil
cdef int window_record(log_window* window, int64_t offset, record_view* v, const uint8_t** at) noexcept nogil

# The offset at which the log continues behind `at`, an offset with the status WINDOW_GONE.
cdef int64_t window_behind(const log_window* window, int64_t at) noexcept nogil

# Where a record is in memory; NULL if it is outside of the log, or the window does not have its segment.
cdef const uint8_t* window_address(const log_window* window, int64_t offset) noexcept nogil

# Prefetches the first cache lines of a record, if the window has its segment.
cdef void window_prefetch(const log_window* window, int64_t offset) noexcept nogil


cdef inline int64_t record_expiry(const record_view* v) noexcept nogil:
    """The time from which on reads leave a message out; 0: never. Most messages cost a test of a bit."""
    cdef property_view expires
    cdef int64_t until
    if not v.sys_flag & <int>SYS_FLAG_EXPIRES or not property_find(
            v.properties, v.properties_len, PROPERTY_EXPIRES_AT_MS, PROPERTY_EXPIRES_AT_MS_BYTES, &expires):
        return 0
    until = derive_due_time(expires.value, expires.value_len)
    return until if until > 0 else 0


cdef inline bint record_expired_in(control_block* block, const record_view* v) noexcept nogil:
    """Whether a message's time is over, by the store's clock."""
    cdef int64_t until = record_expiry(v)
    return until != 0 and until <= store_clock_at(
        block, clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME), False)


cdef inline bint record_expired(const log_window* window, const record_view* v) noexcept nogil:
    """The same for a record in a window; one without a clock leaves no message out."""
    return window.block != NULL and record_expired_in(window.block, v)


cdef class Drops:
    cdef readonly int64_t count
    cdef list spare         # lists of windows


cdef class LogWindow:
    cdef log_window c
    cdef Control control        # None: no message expires
    cdef Drops drops            # of the store's mappings; None: the segments are in no budget
    cdef int64_t seen_drops
    cdef MappedFile keeps_block
    # By place: the MappedFile of each segment, whose references keep the pointers valid, and a memoryview of each file,
    # of which the bodies of messages are parts. None: a free place.
    cdef list files
    cdef list views
    cdef object segment_for
    cdef int64_t* holes
    cdef int oldest             # place that the next part replaces
    cdef int64_t* numbers       # scratch space of the call that has the window
    cdef int64_t numbers_room
    cdef int move(self, int64_t minimum, int64_t wrote) except -1
    cdef int need(self, int64_t offset, bint keeps=*) except -1
    # Whether `need` would let a segment go that the window has.
    cdef bint is_full(self, int64_t offset) noexcept
    cdef bint _is_over_budget(self) noexcept
    cdef int _clear(self, int64_t below) except -1
    cdef int _make_places(self, int room) except -1
    cdef int _put(self, int place, MappedFile file, object view) except -1
    cdef int _place_for(self, MappedFile file) except -1
    cdef int64_t* room(self, int64_t count) except NULL
    # Place of the segment of `offset`, -1 when the window does not have it.
    cdef int place_of(self, int64_t offset) noexcept
    cdef MappedFile file_of(self, int64_t offset)
