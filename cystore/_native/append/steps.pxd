# Long loops in C, step by step. The interpreter does not ask such a loop for the GIL: the loop gives it back at times.

cdef enum:
    BATCH_STEP = 4096  # messages, or KiB copied, between two moments in which other threads may run


cdef inline int yield_gil() except -1:
    """Gives the GIL back for a moment."""
    with nogil:
        pass
    return 0


cdef inline list in_steps(object messages):
    """A new list of the messages."""
    cdef list gathered = []
    cdef Py_ssize_t first
    if type(messages) is not list and type(messages) is not tuple:
        return list(messages)
    for first in range(0, len(messages), <Py_ssize_t>BATCH_STEP):
        gathered += messages[first:first + <Py_ssize_t>BATCH_STEP]
        yield_gil()
    return gathered


cdef inline int let_go(list objects) except -1:
    """Drops many references step by step."""
    while len(objects) > <Py_ssize_t>BATCH_STEP:
        del objects[-<Py_ssize_t>BATCH_STEP:]
        yield_gil()
    objects.clear()
    return 0
