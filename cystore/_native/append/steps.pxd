# Long loops in C, step by step. The interpreter does not ask such a loop for its lock: the loop offers it now and then.

cdef enum:
    BATCH_STEP = 4096  # messages, or KiB copied, between two moments in which other threads may run


cdef inline int let_others_run() except -1:
    """A long loop in C gives the GIL back now and then: the interpreter does not ask it to."""
    with nogil:
        pass
    return 0


cdef inline list in_steps(object messages):
    """The messages in a list of its own."""
    cdef list gathered = []
    cdef Py_ssize_t first
    if type(messages) is not list and type(messages) is not tuple:
        return list(messages)
    for first in range(0, len(messages), <Py_ssize_t>BATCH_STEP):
        gathered += messages[first:first + <Py_ssize_t>BATCH_STEP]
        let_others_run()
    return gathered


cdef inline int let_go(list objects) except -1:
    """Drops many references step by step."""
    while len(objects) > <Py_ssize_t>BATCH_STEP:
        del objects[-<Py_ssize_t>BATCH_STEP:]
        let_others_run()
    objects.clear()
    return 0
