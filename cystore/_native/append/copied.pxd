from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.layout cimport control_block, queue_entry
from cystore._native.memory.control cimport Control
from cystore._native.record.property_read cimport light_queues

# A checked record. Its pointers lead into the caller's bytes.
cdef struct copied_record:
    const uint8_t* start
    const uint8_t* topic
    int64_t at                  # distance from the batch's first byte
    int64_t queue_offset
    int64_t store_timestamp
    queue_entry* entry
    int32_t size
    int32_t topic_len
    int32_t queue_id
    bint has_queue_offset
    bint is_light               # is in the light queues too
    light_queues light


cdef enum:
    NEEDS_MARKER = 1    # a record is in cystore's own format
    NEEDS_TIMER = 2     # a message waits until a time of its own


cdef class CopiedRecords:
    cdef Control control
    cdef copied_record* records
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef Py_ssize_t count
    cdef int failed                     # errno of the last write to the file
    cdef readonly int64_t position      # of the first record
    cdef readonly int64_t length        # of all records
    cdef readonly int64_t blank         # length of the blank behind them; 0: the bytes have none
    # length of the record behind them, when the bytes have its begin and not its end; else 0
    cdef readonly int64_t short
    cdef readonly int needs             # what the store must say of itself before it has these records: NEEDS_...

    # `check` without the interpreter's lock, of bytes that the caller holds: a status of record_view.
    cdef int gather(self, const uint8_t* p, int64_t available, int64_t position, int64_t file_end) noexcept nogil
    # `append`, under the append lock: a status of append.pxd, or WRITE_FAILED. `p` and `place` say where the first
    # record goes, in memory and in the file; `fd` is -1 for memory.
    cdef int append_to(self, control_block* block, uint8_t* p, int fd, int64_t place) noexcept nogil
    cdef bint write(self, int fd, int64_t place) noexcept nogil
    cdef bint find_queue(self, control_block* block, copied_record* r) noexcept nogil
    cdef bint find_light(self, control_block* block, copied_record* r) noexcept nogil
    cdef void wake_all(self, control_block* block) noexcept nogil


cdef enum:
    WRITE_FAILED = 100          # the system's error is in `failed`
    WRITTEN_AT_LEAST = 65536    # so many bytes are written to the file, where the page cache takes them faster
