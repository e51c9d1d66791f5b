from libc.stdint cimport int64_t, uint8_t, uint32_t

from cystore._native.layout cimport control_block
from cystore._native.memory.atomics cimport pthread_mutex_t
from cystore._native.record.window cimport LogWindow

cdef enum TailStatus:           # beside RecordStatus and WindowStatus
    TAIL_AGAIN = 48             # dispatch has entered that offset meanwhile; the queue's file has it
    TAIL_PIECE = 49             # a piece of the log is done; now other threads may use the table
    TAIL_FULL = 50
    TAIL_NO_MEMORY = 51

# The entries of one queue that its files do not have yet, in the file's format.
cdef struct tail_queue:
    int64_t first               # queue offset of entry 0
    int64_t count
    int64_t room
    uint8_t* entries
    bint jumped                 # the last entry does not continue the one before it
    int64_t jumped_from         # queue offset behind the entry before it

cdef struct tail_state:
    pthread_mutex_t lock
    tail_queue* queues          # by slot
    uint32_t queue_room
    uint32_t* used              # slots of the queues that have memory
    uint32_t used_count
    int64_t reached             # log position that the walk has reached
    int64_t total               # entries of all queues
    int64_t last_total          # `total` after the last `_drop_dispatched`
    int64_t most                # the highest allowed `total`
    bint whole                  # the table has all entries of [dispatched, reached)

cdef class TailTable:
    cdef tail_state c
    # Copies at most `count` entries of a queue from `offset` on to `out`, from the log below the end of `window`. Sets
    # `copied` and returns RECORD_OK, or returns the status that stopped the walk. Raises the errors of `window.need`.
    cdef int copy(self, control_block* block, LogWindow window, uint32_t slot, int64_t offset, int64_t count,
                  uint8_t* out, int64_t* copied) except -1
