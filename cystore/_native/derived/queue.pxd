from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.filters.bitmap cimport GroupBits
from cystore._native.filters.program cimport filter_program
from cystore._native.layout cimport control_block, queue_entry
from cystore._native.memory.atomics cimport load_i64
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.message cimport Message
from cystore._native.record.record_view cimport record_parts
from cystore._native.record.window cimport LogWindow, log_window

cdef enum SelectStatus:
    SELECT_DONE = 0
    SELECT_NEED_SEGMENT = 1     # the window does not have the segment of the record at `wanted`
    SELECT_DAMAGED = 2          # entry or record is damaged: `status` says how
    SELECT_ASK = 3              # the caller sets `answer` for the record at `wanted`
    SELECT_NEED_UNITS = 4       # `units` does not have the file of the extended unit at position `wanted`

cdef enum:
    SELECT_BAD_ENTRY = 32       # `status`: the entry has impossible values
    SELECT_OTHER_RECORD = 33    # the entry points to a record of another size, queue or queue offset

# One look at a queue: the queue offsets of its first message, behind its last entry, and behind its last message; and
# the bounds of the log.
cdef struct queue_look:
    int64_t minimum
    int64_t dispatched
    int64_t following
    int64_t log_minimum
    int64_t wrote


cdef inline void look_at_queue(control_block* block, queue_entry* entry, queue_look* state) noexcept nogil:
    """The order of the acquire loads matters: entries below `dispatched` (release in dispatch.pyx: _put_queue) point
    below `wrote` (release in append.pxd: move_wrote)."""
    state.following = load_i64(&entry.next)
    state.minimum = load_i64(&entry.minimum)
    state.dispatched = load_i64(&entry.dispatched)
    state.log_minimum = load_i64(&block.min_physical_offset)
    state.wrote = load_i64(&block.wrote)


# The tags that a reader wants.
cdef struct tag_filter:
    int count
    int32_t* codes
    const uint8_t** tags
    int* lengths

# The caller's answer to SELECT_ASK.
cdef enum:
    ANSWER_NONE = 0
    ANSWER_TAKE = 1
    ANSWER_LEAVE = 2

# RocketMQ's limits of one batch. The last `memory_bytes` of the log count as in memory.
cdef struct batch_limits:
    int32_t max_count
    int64_t memory_bytes
    int64_t bytes_in_memory
    int32_t count_in_memory
    int64_t bytes_in_disk
    int32_t count_in_disk

# A selected message. `start` is valid until the window unmaps a segment.
cdef struct chosen_record:
    int64_t physical_offset
    const uint8_t* start
    record_parts parts

# Extended units that tell a reader which messages its filter does not match.
cdef struct unit_view:
    const int32_t* bits         # of the reader's group; NULL: units are not examined
    int bitmap_bytes
    int64_t born                # units of records before this log position do not count
    int64_t base                # positions in the mapped file
    int64_t end
    const uint8_t* address      # NULL: there is no file

# A pass over consecutive entries of one queue. It can stop and continue.
cdef struct selection:
    const uint8_t* entries
    int64_t first               # queue offset of the first entry
    int64_t count
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    bint codes_are_hashes       # false in the queues of delayed messages: their tags codes are due times
    batch_limits limits
    tag_filter filter
    const filter_program* program   # NULL: no expression
    unit_view units
    bint asks                   # ask the caller about each record that passed the other filters
    int answer
    int64_t at                  # entries examined
    int32_t found
    int64_t found_bytes
    int64_t missing             # entries without a message: holes, and removed messages
    int64_t wanted
    int64_t passed              # physical offset in the last examined entry; -1: none
    int status
    chosen_record* chosen       # room for limits.max_count

cdef void queue_put(uint8_t* p, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept nogil
cdef void queue_put_holes(uint8_t* p, int64_t count) noexcept nogil
cdef bint queue_is_hole(const uint8_t* p) noexcept nogil
cdef int queue_select(selection* s, log_window* window) except -1 nogil

# The messages of a selection, or the bytes and begins of their records. All of them are verified.
cdef list selected_messages(selection* s, LogWindow window)
cdef tuple selected_records(selection* s)
# The record that SELECT_ASK asks about, and the error for the entry or record of SELECT_DAMAGED. `file` has the
# entries.
cdef Message asked_message(const selection* s, LogWindow window)
cdef object selection_damage(const selection* s, LogWindow window, MappedFile file)
cdef bint selection_behind(const selection* s, const log_window* window) noexcept nogil
# Reserves room in the window for the selected records, until the next call.
cdef int selection_room(selection* s, LogWindow window) except -1

cdef class UnitReader:
    cdef readonly GroupBits bits
    cdef readonly int64_t born
    cdef object file_of
    cdef MappedFile file            # the last one
    # Makes a selection examine the units.
    cdef int begin(self, selection* s) except -1
    cdef int need(self, unit_view* units, int64_t position) except -1

cdef class TagFilter:
    cdef tag_filter c
    cdef readonly tuple tags
    cdef tuple encoded

cdef class BatchLimits:
    cdef batch_limits c
