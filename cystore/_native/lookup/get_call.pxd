# One look of a `get` at its queue: the part that runs without the GIL.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from cystore._native.derived.dispatch cimport dispatch_turn
from cystore._native.derived.gather cimport dispatch_state
from cystore._native.derived.queue cimport look_at_queue, queue_look, queue_select, selection
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, control_block, queue_entry
from cystore._native.memory.atomics cimport load_i64, load_u32
from cystore._native.memory.control cimport READ_WROTE, read_end
from cystore._native.record.window cimport log_window

cdef enum LookStatus:       # beside SelectStatus
    GET_NEED_FILE = 64      # the queue's file is not mapped
    GET_NEED_DISPATCH = 65  # dispatch is behind, and another thread or process is at it
    GET_NEED_END = 66       # the queue offset at which the reader ends is not known
    GET_NEED_BITS = 67      # the bitmap of the reader's group is not at hand
    GET_CLEANED = 68        # the log's minimum has moved
    GET_IN_TAIL = 69        # the message is not dispatched, and this process may not dispatch
    GET_OUTSIDE = 70        # the queue has no entry for the offset
    GET_GONE = 71           # a segment was removed

# A mapped consume queue file.
cdef struct queue_place:
    uint32_t queue          # slot + 1; 0: none
    uint32_t removals       # of the queue, before the file was mapped
    int64_t base
    int64_t end
    const uint8_t* address

# The state of one `get`.
cdef struct get_call:
    control_block* block
    queue_entry* entry
    uint32_t slot           # of the entry
    bint raw                # the records' bytes instead of messages
    int64_t since_ms
    int64_t manifest_seq    # of the manifest whose damage the window knows
    int status              # of the last look: a LookStatus or SelectStatus
    dispatch_state* turn    # NULL: no turn of dispatch. Else the call holds the dispatch lock until the turn is made
    queue_place place
    selection select
    queue_look state        # the queue as this look saw it, for a reader with this end
    int64_t offset
    int64_t position        # of its entry; -1: it can have none
    int64_t examined        # the most entries that the call examines
    bint is_filtered
    bint has_tail
    bint waits              # another dispatcher may be waited for
    int64_t awaited         # the wrote position at the begin, if dispatch was behind: the result includes all before
    int64_t log_minimum
    bint needs_bits
    int which_end
    int64_t readable        # log position where the reader ends, if that is before the wrote position
    int64_t end             # its queue offset; -1: not known
    bint is_cut             # the queue has entries behind it
    const uint8_t* made     # entries from the offset on that the log gave, instead of the queue's file
    int64_t made_count


cdef inline int64_t examined_by(const get_call* c) noexcept nogil:
    """How many entries the call examines if each of them stands for a message."""
    return c.examined if c.is_filtered else c.select.limits.max_count


cdef inline int get_select(get_call* c, log_window* window) except -1 nogil:
    if c.made != NULL:
        c.select.entries = c.made
        c.select.count = min(min(c.state.dispatched - c.offset, c.made_count), c.examined)
        return queue_select(&c.select, window)
    if c.place.address == NULL or not c.place.base <= c.position < c.place.end \
            or c.place.removals != load_u32(&c.entry.removals):
        return GET_NEED_FILE
    c.select.entries = c.place.address + (c.position - c.place.base)
    c.select.count = min(min(c.state.dispatched, c.place.end // <int64_t>QUEUE_ENTRY_BYTES) - c.offset, c.examined)
    return queue_select(&c.select, window)


cdef inline int get_look(get_call* c, log_window* window) except -1 nogil:
    """Makes the turn of dispatch, looks at the queue, then selects."""
    cdef queue_look* q = &c.state
    cdef int64_t awaited = c.awaited
    if c.turn != NULL:
        dispatch_turn(c.turn)
        c.turn = NULL
    look_at_queue(c.block, c.entry, q)
    window.wrote = q.wrote
    if q.log_minimum != c.log_minimum:
        return GET_CLEANED
    if c.waits and q.dispatched < q.following:
        awaited = max(awaited, q.wrote)
    if c.offset > q.dispatched - examined_by(c) and load_i64(&c.block.dispatched) < awaited:
        return GET_NEED_DISPATCH
    c.is_cut = False
    if c.which_end != READ_WROTE:
        if c.end < 0:
            c.readable = read_end(c.block, q.wrote, c.which_end)
            if c.readable < q.wrote:
                return GET_NEED_END
        elif c.end < max(q.dispatched, q.following if c.has_tail and not c.block.pooled else 0):
            c.is_cut = True
            q.dispatched, q.following = min(q.dispatched, c.end), min(q.following, c.end)
    if not q.minimum <= c.offset < q.dispatched:
        return GET_IN_TAIL if c.has_tail and q.dispatched <= c.offset < q.following else GET_OUTSIDE
    return GET_NEED_BITS if c.needs_bits else get_select(c, window)
