from libc.stdint cimport int64_t, uint8_t, uint32_t

from cystore._native.layout cimport control_block
from cystore._native.memory.atomics cimport pthread_mutex_t
from cystore._native.record.window cimport LogWindow

cdef enum TailStatus:           # beside RecordStatus and WindowStatus
    TAIL_AGAIN = 48             # dispatch has entered that offset meanwhile: its queue's file has it
    TAIL_PIECE = 49             # a piece of the log is done; others may use the table now
    TAIL_FULL = 50
    TAIL_NO_MEMORY = 51

# The entries of one queue that its files do not have yet, as a file would have them.
cdef struct tail_queue:
    int64_t first               # queue offset of entry 0
    int64_t count
    int64_t room
    uint8_t* entries

cdef struct tail_state:
    pthread_mutex_t lock
    tail_queue* queues          # by their slots
    uint32_t queue_room
    uint32_t* used              # the slots that have memory
    uint32_t used_count
    int64_t reached             # log position that the walk has come to
    int64_t total               # entries of all queues
    int64_t kept                # how many of them stayed when the last ones were let go
    int64_t most                # entries that are kept at most
    bint whole                  # every entry that dispatch still lacks and that stands before `reached` is here

cdef class TailTable:
    cdef tail_state c
    # Copies at most `count` entries of a queue from `offset` on to `out`, as far as the log below `window`'s end has
    # them: RECORD_OK and how many, or what the walk stopped at. Raises what the window's `need` raises.
    cdef int copy(self, control_block* block, LogWindow window, uint32_t slot, int64_t offset, int64_t count,
                  uint8_t* out, int64_t* copied) except -1
