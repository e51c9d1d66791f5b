"""The store's clock for Python: the time that attached processes use instead of the wall clock (wallclock.h,
docs/clock.md)."""

from libc.stdint cimport int64_t

from cystore._native.memory.atomics cimport load_i64, load_u32, store_i64, store_u32
from cystore._native.memory.control cimport Control
from cystore._native.layout cimport control_block

cdef extern from "wallclock.h" nogil:
    int CLOCK_BOOTTIME
    int CLOCK_REALTIME
    int CLOCK_LOOKS
    int64_t clock_read_ms(int which)
    int64_t store_clock_at(control_block* block, int64_t wall, int64_t boot, bint looks)
    int64_t store_clock_expiry(const control_block* block, int64_t now, int64_t boot)
    void store_clock_believe(control_block* block, int64_t wall, int64_t boot)


def begin(Control control not None, int64_t jump_ms, int64_t last_store_timestamp_ms, witness=None):
    """Starts the clock of a block that no other process has yet. `witness` is a result of `words` from this boot of the
    host. Without it the clock follows the wall clock, but deletion waits: the wall clock may have jumped before."""
    cdef control_block* block = control.checked()
    cdef int64_t boot = clock_read_ms(CLOCK_BOOTTIME), wall = clock_read_ms(CLOCK_REALTIME)
    block.clock_jump_ms = jump_ms
    store_clock_believe(block, wall, boot)
    if witness is None:
        store_i64(&block.clock_known_ms, last_store_timestamp_ms)
        return
    offset, seen, seen_since, stood, known = witness
    store_i64(&block.clock_stood_ms, stood)
    store_i64(&block.clock_known_ms, known)
    store_i64(&block.clock_offset_ms, offset)
    store_i64(&block.clock_seen_ms, seen)
    store_i64(&block.clock_seen_since_ms, seen_since)
    store_i64(&block.clock_look_ms, seen_since)
    store_u32(&block.clock_looks, CLOCK_LOOKS - 1)
    store_clock_at(block, wall, boot, True)


def words(Control control not None):
    """The witness for a later process of this boot: offset, seen, seen since, stood since, known."""
    cdef control_block* block = control.checked()
    return (load_i64(&block.clock_offset_ms), load_i64(&block.clock_seen_ms), load_i64(&block.clock_seen_since_ms),
            load_i64(&block.clock_stood_ms), load_i64(&block.clock_known_ms))


cdef int64_t _now_ms(Control control, bint looks) except? -1:
    return store_clock_at(control.checked(), clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME), looks)


def now_ms(Control control not None):
    """The time of the store. A handle that may write counts this look at the clock."""
    return _now_ms(control, not control.read_only)


def expiry_ms(Control control not None):
    """The time for decisions to delete: the store's time, or an earlier time that is certain."""
    cdef int64_t now = _now_ms(control, not control.read_only)
    return store_clock_expiry(control.checked(), now, clock_read_ms(CLOCK_BOOTTIME))


def believe(Control control not None):
    """Makes the wall clock the store's time: an operator has checked it."""
    control._writable()
    store_clock_believe(control.checked(), clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME))


def ahead_ms(Control control not None):
    """How far the wall clock is ahead of the store's time; 0 if the store follows it."""
    cdef int64_t wall = clock_read_ms(CLOCK_REALTIME)
    return wall - store_clock_at(control.checked(), wall, clock_read_ms(CLOCK_BOOTTIME), False)


def jump_ms(Control control not None):
    """The longest jump of the wall clock that the store follows at once."""
    return control.checked().clock_jump_ms


def jumps(Control control not None):
    """The number of jumps of the wall clock since the first attach."""
    return load_u32(&control.checked().clock_jumps)
