"""Named places outside of the kernels where a process of a test build can be killed or stopped: see failpoints.h."""

cdef extern from "failpoints.h" nogil:
    void _failpoint "failpoint"(const char* name)


def failpoint(str name not None):
    """Kills or stops this process when the environment names this place. Does nothing in other builds."""
    cdef bytes text = name.encode()
    _failpoint(text)
