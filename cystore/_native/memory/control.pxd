from libc.stdint cimport int64_t, uint32_t, uint64_t

from cystore._native.layout cimport control_block
from cystore._native.memory.atomics cimport load_i64, load_u32
from cystore._native.memory.control_fields cimport ControlFields


cdef inline int64_t* log_end(control_block* block) noexcept nogil:
    """The word with the end of the log, which an append moves. With a pool of buffers the records go there first, and
    `wrote` follows when they are copied to their segment."""
    return &block.appended if block.pooled else &block.wrote


cdef enum ReadEnd:
    READ_WROTE = 0                  # all records. With a pool of buffers, these are the committed ones
    READ_CONFIRMED = 1              # where the master is elected: records that no failover takes back


cdef inline int64_t read_end(control_block* block, int64_t wrote, int which) noexcept nogil:
    """The log position where a reader ends. A process may have opened the store before it became a member of a group,
    so each call looks at `confirming`."""
    return min(wrote, load_i64(&block.confirmed)) if which != READ_WROTE and load_u32(&block.confirming) else wrote


cdef enum:
    PLACE_LOOK_MS = 500             # between two looks whether the store's path still leads to its directory


cdef class Control(ControlFields):
    cdef public object committer    # commits up to a log position; None without a pool
    cdef uint32_t request_before    # the word `handover` when this process attached
    # Of this process alone: the coarse clock when the store's path last led to its directory (`place_seen`).
    cdef int64_t place_ms
    cdef void _know_slots(self, uint64_t pid_namespace) noexcept
    cdef void _leave(self) noexcept
    cdef int _take_over(self, uint64_t pid_namespace, str c_library) except -1
