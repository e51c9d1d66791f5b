from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.memory.control cimport Control
from cystore._native.derived.index cimport index_view
from cystore._native.filters.bitmap cimport FilterTable, filter_table
from cystore._native.layout cimport control_block, queue_entry
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.property_read cimport light_queues
from cystore._native.record.window cimport segment_view

cdef enum DispatchStatus:
    DISPATCH_DONE = 0               # `end` is reached
    DISPATCH_NEED_SEGMENT = 1       # the log file that holds `position`
    DISPATCH_NEED_QUEUE = 2         # a queue of the record at `position` is not in the table
    DISPATCH_NEED_GAP = 3           # hole entries in queue `slot` up to queue offset `wanted`
    DISPATCH_NEED_QUEUE_FILE = 4    # the file of queue `slot` that holds position `wanted`
    DISPATCH_NEED_QUEUE_SPACE = 5   # space at position `wanted` of queue `slot`
    DISPATCH_NEED_EXT_FILE = 6      # the extended file of queue `slot` for the next unit
    DISPATCH_NEED_EXT_SPACE = 7     # space for that unit
    DISPATCH_NEED_INDEX_FILE = 8    # an index file with a free entry
    DISPATCH_NEED_INDEX_SPACE = 9   # space up to position `wanted` of the index file
    DISPATCH_DAMAGED = 10           # the record at `position` is not valid: `detail` is its RecordStatus

# The files of one queue that dispatch writes. Positions count from the start of the queue, in bytes.
cdef struct queue_files:
    uint8_t* address                # NULL: not mapped
    int64_t base
    int64_t end
    uint32_t removals               # of the queue's slot at `use_queue`; if it changes, the file was removed
    uint64_t used                   # round of the last write
    uint8_t* ext_address            # NULL: not mapped
    int64_t ext_base
    int64_t ext_end
    int64_t ext_next                # where the next unit goes
    int64_t ext_allocated

# A parsed record whose entries are not written yet.
cdef struct pending_record:
    int64_t position
    int64_t end
    int64_t queue_offset
    int64_t tags_code
    int64_t store_timestamp
    queue_entry* queue              # NULL: the record belongs to no queue
    uint32_t slot
    int first_key
    int key_count
    uint8_t* bitmap             # of its extended unit; NULL: none
    bint is_light               # the record is in the queues of `light` too
    light_queues light

# A key of such a record.
cdef struct pending_key:
    int32_t hash
    uint32_t slot                   # its number in the index file, if there is one

# A queue of earlier records. Its slot has the same numbers, but in the cache line that each append to the queue changes.
cdef struct known_queue:
    queue_entry* entry              # NULL: none
    uint32_t hash
    int32_t queue_id
    int topic_len

cdef enum:
    GATHER_BYTES = 1048576          # of log in `pending`; some 3 ms
    KNOWN_QUEUES = 64               # power of two
    PENDING_RECORDS = 32            # parsed ahead, to prefetch the hash slots of their keys
    KEYS_MAX = 16384                # in one record: a key and its blank take two of 32,767 bytes

# The state of one dispatcher. Its process uses it under the dispatch lock.
cdef struct dispatch_state:
    control_block* block
    segment_view segment
    index_view index                # p is NULL while there is none
    int64_t index_allocated
    queue_files* queues             # by slot
    uint32_t queue_count
    uint64_t round
    bint with_index
    bint with_ext
    const filter_table* filters     # NULL: units have no bitmaps
    uint8_t* bitmaps                # room for one bitmap for each pending record
    const int64_t* delay_ms
    int delay_levels
    int64_t end                     # a record that begins here or later is not dispatched
    int64_t wrote
    int64_t until_ns                # monotonic time at which the run ends after a few records more
    int64_t position
    int keys_done                   # keys of the record at `position` that are in the index
    int part                        # the queue that the status is about: 0 is the record's own, its light ones follow
    # The record there has its entries in its first `left_out_part` light queues, or was left out of them.
    int64_t left_out_at
    int left_out_part
    uint32_t slot
    int64_t wanted
    int detail
    const uint8_t* seeded_topic     # the topic of `seed`, in the control block
    int seeded_topic_len
    int32_t seed
    # End of this process's last turn. If it is not `dispatched`, another process has dispatched since.
    int64_t stopped_at
    int64_t mapped_index_seq        # index_seq at `use_index`; -1: `use_index` has to come first
    int64_t sound_until             # begin of the first damaged range behind the last turn,
    int64_t sound_seq               # in the manifest with this sequence number
    const control_block* known_in   # the block of `known`
    known_queue* last_known         # that of the last record, or NULL
    known_queue[KNOWN_QUEUES] known     # by hash
    int pending_count
    pending_record[PENDING_RECORDS] pending
    pending_key[KEYS_MAX + PENDING_RECORDS * 8] keys

cdef int dispatch_run(dispatch_state* d) noexcept nogil
# A reader's turn of dispatch, after `DispatchKernel.take_turn`. Releases the dispatch lock.
cdef void dispatch_turn(dispatch_state* d) noexcept nogil

cdef class DispatchKernel:
    cdef dispatch_state* d
    cdef Control control
    cdef MappedFile segment, index_file
    cdef FilterTable filters
    cdef int64_t* delay_ms
    cdef dict queue_mappings, ext_mappings
    cdef queue_files* _files(self, uint32_t slot) except NULL
    cdef bint take_turn(self) noexcept
