"""The reads of one attached process, and their sum over all processes in the control block.

Readers of many processes would compete for the shared words. So each process counts for itself and adds its new counts
every MERGE_MS. If the process dies, the counts since the last merge are lost.

Reads touch pages of the log. So every LOOK_MS a read also calls `look`, which releases pages when they have become
many.
"""

cimport cython
from libc.string cimport memset

from cystore._native.append.append cimport latency_bucket
from cystore._native.layout cimport control_block
from cystore._native.memory.atomics cimport add_u64, clock_coarse_ms, raise_i64
from cystore._native.memory.locks cimport control_intact

cdef enum:
    MERGE_MS = 50
    LOOK_MS = 50


@cython.final
@cython.auto_pickle(False)
cdef class ReadCounts:
    """`found` and `missed` gets, the `messages` they gave, and `queries`, of this process. Safe for threads."""

    def __init__(self, Control control not None, look):
        self.look = look
        if <int>BUCKETS != <int>LATENCY_BUCKETS:
            raise AssertionError("the layout has another number of buckets")
        self.control = control

    cdef int got(self, int64_t since_ms, Py_ssize_t messages) except -1:
        cdef int64_t now = clock_coarse_ms(), took = now - since_ms
        if messages:
            self.found += 1
            self.new_found += 1
            self.messages += messages
            self.new_messages += messages
        else:
            self.missed += 1
        self.fresh = True
        self.latency[latency_bucket(took)] += 1
        if took > self.max_ms:
            self.max_ms = took
        if now - self.merged_ms >= <int64_t>MERGE_MS:
            self.add(now)
        return self.look_now(now)

    cdef int asked(self, Py_ssize_t queries) except -1:
        self.queries += queries
        self.new_queries += queries
        self.fresh = True
        return self.look_now(clock_coarse_ms())

    cdef int look_now(self, int64_t now_ms) except -1:
        if now_ms - self.looked_ms >= <int64_t>LOOK_MS:
            self.looked_ms = now_ms
            self.look()
        return 0

    cdef int add(self, int64_t now_ms) except -1:
        """No Python code runs here, so no other thread counts meanwhile."""
        cdef control_block* block = self.control.block
        cdef int i
        if not self.fresh or block == NULL or self.control.read_only or not control_intact(block):
            return 0
        self.merged_ms = now_ms
        self.fresh = False
        for i in range(BUCKETS):
            if self.latency[i]:
                add_u64(&block.get_latency[i], self.latency[i])
        raise_i64(&block.get_time_max_ms, self.max_ms)
        add_u64(&block.get_found, self.new_found)
        add_u64(&block.get_messages, self.new_messages)
        add_u64(&block.query_count, self.new_queries)
        memset(self.latency, 0, sizeof(self.latency))
        self.max_ms = 0
        self.new_found = self.new_messages = self.new_queries = 0
        return 0

    def count_queries(self, Py_ssize_t queries):
        """Counts that many queries by key."""
        self.asked(queries)

    def merge(self):
        """Adds the new counts to the control block. A read-only handle adds nothing."""
        self.add(clock_coarse_ms())
