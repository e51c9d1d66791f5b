from libc.stdint cimport int64_t, uint32_t

from cystore._native.atomics cimport *
from cystore._native.layout cimport *


cdef inline pthread_mutex_t* control_lock_at(control_block* block, int which) noexcept nogil:
    return control_mutex(<control_block_opaque*>block, which)


cdef inline int control_locked(control_block* block, int which, int status) noexcept nogil:
    """Turns EOWNERDEAD into a repair that is due until somebody finished it: a killed or failed repairer passes it on.
    Called with the result of each attempt to lock."""
    if status == EOWNERDEAD:
        or_u32(&block.repair_due, 1u << which)
        pthread_mutex_consistent(control_lock_at(block, which))
        return 0
    return status


cdef inline bint control_repair_due(control_block* block, int which) noexcept nogil:
    return load_u32(&block.repair_due) & (1u << which) != 0


cdef inline bint control_intact(control_block* block) noexcept nogil:
    """False when somebody else's bytes stand where the constants of the control block belong."""
    return block.magic == CONTROL_MAGIC and block.guard == ~CONTROL_MAGIC and block.fingerprint == LAYOUT_FINGERPRINT


cdef class Control:
    cdef control_block* block
    cdef readonly object file       # the MappedFile (or anonymous memory) that block points into
    cdef readonly bint read_only
    cdef object __weakref__
    cdef control_block* checked(self) except NULL
    cdef control_block* _writable(self) except NULL
    cdef queue_entry* _slot(self, int64_t slot) except NULL
