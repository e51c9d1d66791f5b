from cystore._native.derived.index cimport index_view
from cystore._native.memory.mapping cimport MappedFile

cdef class QueryResult(list):
    cdef list _damaged      # None: the empty list is not made yet

# Sets `index` to index file number `place` of `files` (see `find_messages`) and maps the file if necessary. Returns its
# mapping; None: the file was cleaned meanwhile.
cdef MappedFile view_index(list files, Py_ssize_t place, index_view* index)
