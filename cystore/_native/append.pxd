from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.layout cimport SYS_FLAG_COMMIT, SYS_FLAG_TRANSACTION_MASK, control_block
from cystore._native.record_write cimport append_item

cdef enum AppendStatus:
    APPEND_OK = 0
    APPEND_NEED_SEGMENT = 1    # the segment at `needed` is not mapped here
    APPEND_NEED_SPACE = 2      # the log must be allocated up to `needed`
    APPEND_NEED_QUEUES = 3     # no allocated queue slot is left
    APPEND_REFUSED = 4         # a flag of the store forbids writing
    APPEND_OVERWRITTEN = 5     # the control block is not what we left

cdef extern from "wallclock.h" nogil:
    ctypedef struct wall_clock:
        int64_t ms
    int64_t wall_clock_ms(wall_clock* clock)
    int64_t wall_clock_took_ms(wall_clock* clock)

# Where this process writes: the mapped segment, and what it saw last. Touched under the append lock only.
cdef struct append_target:
    control_block* block
    uint8_t* address
    int64_t base
    int64_t length
    uint32_t magic
    int64_t last_seen
    int64_t needed
    wall_clock clock

cdef inline bint takes_queue_offset(int32_t sys_flag) noexcept nogil:
    """Prepared and rollback messages have no place in a consume queue."""
    cdef uint32_t transaction = <uint32_t>sys_flag & SYS_FLAG_TRANSACTION_MASK
    return transaction == 0 or transaction == SYS_FLAG_COMMIT

# Appends items[done:count] under the append lock; every run of them that fits a segment is published as one.
cdef int append_locked(control_block* block, append_target* target, append_item* items, Py_ssize_t count, Py_ssize_t* done,
                       int64_t waits_since_ms) noexcept nogil
