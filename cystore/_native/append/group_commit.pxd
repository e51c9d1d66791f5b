from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.layout cimport control_block
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile


# How long a put has waited in the kernel.
cdef struct put_waits:
    int64_t disk_ms
    int64_t slaves_ms           # -1: this wait has not begun


cdef class GroupCommit:
    cdef Control control
    cdef MappedFile checkpoint
    cdef object folder              # a Descriptor; keeps `folder_fd` open
    cdef bytes name, home
    cdef int folder_fd
    cdef const char* name_text
    cdef const char* home_text      # NULL: the store's path is not checked
    cdef uint64_t home_inode
    cdef uint32_t home_major, home_minor
    cdef int64_t home_at            # the home was checked when the log was durable up to here
    cdef int64_t behind_max
    cdef uint32_t wanted_key, reported_key
    cdef int64_t announced          # a put waits for slaves with the log up to here, and they know it
    cdef readonly int64_t base      # of the segment whose name is known; -1: none
    cdef int64_t turn               # when a thread took its turn to get the interpreter's lock back; 0: none has it
    cdef public bint enabled
    cdef public int64_t slice_ms    # the longest wait here; then the caller goes on, and handles signals
    cdef public int64_t gather_max_us, gather_pause_us
    cdef public double sync_us      # of the last sync
    cdef int reach(self, MappedFile segment, int64_t end, int flush, put_waits* waits) except -1
    cdef bint make_durable(self, control_block* block, MappedFile segment, int64_t end,
                           int64_t until_ns) noexcept nogil
    cdef int _reach(self, control_block* block, MappedFile segment, int64_t end, bint flushes, bint replicates,
                    int64_t epoch, put_waits* waits) noexcept nogil
    cdef void _take_turn(self) noexcept nogil
    cdef int _flush(self, control_block* block, MappedFile segment, int64_t end, bint gathers, bint announces,
                    int64_t until_ns) noexcept nogil
    cdef int _replicate(self, control_block* block, int64_t end, int64_t epoch, int64_t until_ns) noexcept nogil
    cdef int _lead(self, control_block* block, MappedFile segment, bint gathers, bint announces) noexcept nogil
    cdef int _sync(self, control_block* block, MappedFile segment, int64_t begin, int64_t end) noexcept nogil
    cdef int _last_record(self, control_block* block, MappedFile segment, int64_t* last,
                          int64_t* end) noexcept nogil
    cdef void _store_watermark(self, const uint8_t* record, int64_t last, int64_t end) noexcept nogil
    cdef void _gather(self, control_block* block) noexcept nogil
    cdef void _await_report(self, control_block* block, int64_t end) noexcept nogil
    cdef void _announce(self, control_block* block) noexcept nogil
    cdef bint _is_home(self, control_block* block) noexcept nogil
