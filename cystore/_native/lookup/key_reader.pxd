from libc.stdint cimport int64_t, uint8_t, uint32_t

from cystore._native.derived.dispatch cimport DispatchKernel
from cystore._native.derived.index cimport index_view
from cystore._native.layout cimport control_block
from cystore._native.lookup.counts cimport ReadCounts
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.window cimport LogWindow

# The messages that a caller wants.
cdef struct key_request:
    const uint8_t* topic
    int topic_len
    const uint8_t* key
    int key_len
    int64_t max_count
    int64_t begin_ms
    int64_t end_ms
    bint as_text            # the key is compared as text, not as bytes

# The moment that a search shows.
cdef struct key_moment:
    control_block* block
    int64_t wrote
    int64_t dispatched      # the index has all keys below
    int64_t end             # the reader ends here

cdef class QueryResult(list):
    cdef list _damaged      # None: the empty list is not made yet

cdef class KeyReader:
    cdef Control control
    cdef DispatchKernel dispatcher
    cdef object obstacles, tail, general
    cdef list windows
    cdef list files             # the index files, newest first; None: not asked for yet
    cdef uint32_t files_seq     # index_seq before that
    cdef ReadCounts counts
    cdef int which_end          # a ReadEnd, for calls that name none
    cdef MappedFile begin(self, key_moment* m, int which_end)
    cdef LogWindow window(self)
    cdef int give_back(self, LogWindow window) except -1
    cdef QueryResult find(self, LogWindow window, const key_moment* m, const key_request* r, str text)
    cdef QueryResult with_undispatched(self, QueryResult older, LogWindow window, const key_moment* m,
                                       const key_request* r, str text)
    cdef int report(self, QueryResult found) except -1
    cdef QueryResult answer(self, const key_request* r, str text, bint with_expired, int which_end)

# Sets `index` to index file number `place` of `files` and maps the file if necessary. Returns its mapping; None: the
# file was cleaned meanwhile.
#
# `files`: the index files, newest first, as (mapped file, slots, capacity), or as (weak reference to the mapped file,
# slots, capacity, function that maps it). The function replaces the reference in the list after it maps a file.
cdef MappedFile view_index(list files, Py_ssize_t place, index_view* index)

# The request for a key at any time, compared as bytes. It points into the bytes.
cdef void request_for(key_request* r, bytes topic, bytes key, int64_t max_count) noexcept

cdef bint is_compared_as_text(str key) except -1
