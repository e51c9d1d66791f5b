"""The store's clock, for Python: what attached processes believe of the wall clock (wallclock.h, docs/clock.md)."""

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
    """The clock of a block that nobody else has yet. `witness`: what `words` said earlier in this boot of the host;
    without one the wall clock counts, but for deleting: nobody knows what it said before."""
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
    """What a later process of this boot goes on with: offset, seen, seen since, stood since, known."""
    cdef control_block* block = control.checked()
    return (load_i64(&block.clock_offset_ms), load_i64(&block.clock_seen_ms), load_i64(&block.clock_seen_since_ms),
            load_i64(&block.clock_stood_ms), load_i64(&block.clock_known_ms))


cdef int64_t _now_ms(Control control, bint looks) except? -1:
    return store_clock_at(control.checked(), clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME), looks)


def now_ms(Control control not None):
    """The time of the store. A look, which a handle that may write counts."""
    return _now_ms(control, not control.read_only)


def expiry_ms(Control control not None):
    """The time by which something is deleted: that of the store, or an earlier one that nobody doubts."""
    cdef int64_t now = _now_ms(control, not control.read_only)
    return store_clock_expiry(control.checked(), now, clock_read_ms(CLOCK_BOOTTIME))


def believe(Control control not None):
    """An operator says that the wall clock is right."""
    control._writable()
    store_clock_believe(control.checked(), clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME))


def ahead_ms(Control control not None):
    """How far the wall clock is ahead of the store's, which does not believe it; 0 when both are the same."""
    cdef int64_t wall = clock_read_ms(CLOCK_REALTIME)
    return wall - store_clock_at(control.checked(), wall, clock_read_ms(CLOCK_BOOTTIME), False)


def jump_ms(Control control not None):
    """A jump of more is not believed at once."""
    return control.checked().clock_jump_ms


def jumps(Control control not None):
    """Jumps of the wall clock that were seen since the first attach."""
    return load_u32(&control.checked().clock_jumps)
