from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.filters.program cimport filter_program
from cystore._native.record.record_view cimport record_view
from cystore._native.record.window cimport LogWindow, log_window

cdef enum SelectStatus:
    SELECT_DONE = 0
    SELECT_NEED_SEGMENT = 1     # the record at `wanted` is in a segment that is not at hand
    SELECT_DAMAGED = 2          # entry and record do not fit together: `status` says how
    SELECT_ASK = 3              # the caller says in `answer` whether it wants the record at `wanted`

cdef enum:
    SELECT_BAD_ENTRY = 32       # `status`: the entry itself cannot be one
    SELECT_OTHER_RECORD = 33    # the entry leads to a record of another size, queue or queue offset

# Tags that a reader asks for.
cdef struct tag_filter:
    int count
    int32_t* codes
    const uint8_t** tags
    int* lengths

# What the caller says about a record that it was asked for.
cdef enum:
    ANSWER_NONE = 0
    ANSWER_TAKE = 1
    ANSWER_LEAVE = 2

# RocketMQ's limits of one batch; `memory_bytes` behind the log's end counts as held in memory.
cdef struct batch_limits:
    int32_t max_count
    int64_t memory_bytes
    int64_t bytes_in_memory
    int32_t count_in_memory
    int64_t bytes_in_disk
    int32_t count_in_disk

# A message that was chosen. `start` is valid until the window lets a segment go.
cdef struct chosen_record:
    int64_t physical_offset
    const uint8_t* start
    int32_t size

# A pass over consecutive entries of one queue, which can be broken off and gone on with.
cdef struct selection:
    const uint8_t* entries
    int64_t first               # queue offset of the first of them
    int64_t count
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    bint codes_are_hashes       # not in the queues of delayed messages: theirs are due times
    batch_limits limits
    tag_filter filter
    const filter_program* program   # NULL: no expression
    bint asks                   # the caller is asked about each record that is left
    int answer
    int64_t at                  # how many entries are done with
    int32_t found
    int64_t found_bytes
    int64_t gone                # hole entries, and messages below the log's minimum
    int64_t wanted
    int64_t passed              # physical offset of the last entry that was looked at; -1: none
    int status
    chosen_record* chosen       # room for limits.max_count

cdef void queue_put(uint8_t* p, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept nogil
cdef void queue_put_holes(uint8_t* p, int64_t count) noexcept nogil
cdef bint queue_is_hole(const uint8_t* p) noexcept nogil
cdef int queue_select(selection* s, log_window* window) except -1 nogil

# The messages that a selection found, or the bytes of their records and where each begins; all of them are verified.
cdef list selected_messages(selection* s, LogWindow window)
cdef tuple selected_records(selection* s)
cdef bint selection_behind(const selection* s, const log_window* window) noexcept nogil
# Room in the window for what a selection chooses, until the next call.
cdef int selection_room(selection* s, LogWindow window) except -1

cdef class TagFilter:
    cdef tag_filter c
    cdef readonly tuple tags
    cdef tuple encoded

cdef class BatchLimits:
    cdef batch_limits c
