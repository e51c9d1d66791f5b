from libc.stdint cimport int64_t, uint32_t

from cystore._native.append.put cimport FastAppender
from cystore._native.layout cimport control_block
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_write cimport append_item


cdef class AppendLoop(FastAppender):
    # Takes the lock and appends `count` items; `done` counts the items in the log, also when it raises.
    cdef int append(self, append_item* items, Py_ssize_t count, Py_ssize_t* done, bint may_hold_gil, int64_t busy_ms,
                    object policy, uint32_t forbidding, bint together) except -1
    cdef int _wait_for_lock(self, control_block* block, int status, int64_t busy_ms) except -1
    cdef int _mend(self, int status, int64_t busy_ms, object policy, uint32_t forbidding) except -1
    cdef int _use(self, MappedFile file, int64_t ready, int64_t busy_ms) except -1
