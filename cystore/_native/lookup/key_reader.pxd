cdef class QueryResult(list):
    cdef list _damaged      # None: an empty one that nobody asked for yet
