from libc.stdint cimport int64_t, uint32_t

from cystore._native.derived.gather cimport dispatch_state, queue_files
from cystore._native.filters.bitmap cimport FilterTable
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile

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
    # See `turn`.
    cdef bint make_turn(self) except -1
