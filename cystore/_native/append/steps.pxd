# Long loops in C, step by step. The interpreter does not ask such a loop for the GIL: the loop gives it back at times.

from libc.stdint cimport int64_t

from cystore._native.memory.atomics cimport monotonic_ns

cdef enum:
    BATCH_STEP = 256    # messages, or KiB copied, between two looks at the clock; some 0.1 ms
    KEPT_NS = 1500000   # a loop keeps the GIL for about this time; a greedy thread then keeps it for 5 ms


cdef inline int yield_gil(int64_t* since_ns) except -1:
    """Gives the GIL back for a moment, if the loop has kept it long enough `since_ns`."""
    if monotonic_ns() - since_ns[0] < KEPT_NS:
        return 0
    with nogil:
        pass
    since_ns[0] = monotonic_ns()
    return 0


cdef inline list in_steps(object messages, int64_t* since_ns):
    """A new list of the messages."""
    cdef list gathered = []
    if type(messages) is list and len(<list>messages) <= <Py_ssize_t>BATCH_STEP:
        return (<list>messages)[:]
    for message in messages:
        gathered.append(message)
        if len(gathered) & (<Py_ssize_t>BATCH_STEP - 1) == 0:
            yield_gil(since_ns)
    return gathered


cdef inline int let_go(list objects, int64_t* since_ns) except -1:
    """Drops many references step by step."""
    while len(objects) > <Py_ssize_t>BATCH_STEP:
        del objects[-<Py_ssize_t>BATCH_STEP:]
        yield_gil(since_ns)
    objects.clear()
    return 0
