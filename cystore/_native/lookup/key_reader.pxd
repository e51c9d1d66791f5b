cdef class QueryResult(list):
    cdef list _damaged      # None: empty, and not yet asked for
