"""The shared state of delayed messages: the levels of this store, and the progress of each level's queue.

A process writes it under the deliver lock (except the levels). A reader without the lock never sees an offset that is
too high. Source: ScheduleMessageService.offsetTable, which each RocketMQ broker has for itself.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t

from cystore._native.memory.atomics cimport load_i64, load_u32, store_i64, store_u32
from cystore._native.memory.control cimport Control
from cystore._native.record.property_read cimport due_time_possible
from cystore._native.layout cimport DELAY_LEVELS_MAX, control_block


def is_due_time(int64_t due_ms, int64_t store_timestamp_ms):
    """Whether some table of delay levels makes `due_ms` of a message's store timestamp."""
    return due_time_possible(due_ms, store_timestamp_ms)


@cython.final
@cython.auto_pickle(False)
cdef class Delivered:
    """The part of a control block that is about delayed messages. Offsets count messages of a level's queue,
    positions are physical offsets in bytes."""

    cdef Control control

    def __cinit__(self, Control control not None):
        self.control = control

    def set_levels(self, delays_ms):
        """Sets the delay of each level, level 1 first. The process that builds the control block calls it."""
        cdef control_block* block = self.control.checked()
        cdef int i
        if not 0 < len(delays_ms) <= <int>DELAY_LEVELS_MAX:
            raise ValueError(f"{len(delays_ms)} delay levels, not 1 to {DELAY_LEVELS_MAX}")
        for i, delay_ms in enumerate(delays_ms):
            block.delay_ms[i] = delay_ms
        block.delay_level_count = len(delays_ms)

    @property
    def levels_ms(self):
        """The delay of each level, level 1 first; the same in all processes."""
        cdef control_block* block = self.control.checked()
        cdef uint32_t i
        return tuple([block.delay_ms[i] for i in range(min(block.delay_level_count, DELAY_LEVELS_MAX))])

    @property
    def position(self):
        """Log position below which all delivered messages are counted in `offset` of their level's queue."""
        return load_i64(&self.control.checked().delivered)

    @position.setter
    def position(self, int64_t value):
        store_i64(&self.control.checked().delivered, value)

    @property
    def unfinished(self):
        """Whether there may be delivered messages behind `position`. They have to be counted before the next
        delivery."""
        return load_u32(&self.control.checked().delivering) != 0

    @unfinished.setter
    def unfinished(self, bint value):
        store_u32(&self.control.checked().delivering, value)

    def offset(self, int64_t slot):
        """Queue offset behind the last delivered message of a queue."""
        return load_i64(&self.control.slot_at(slot).delivered)

    def set_offset(self, int64_t slot, int64_t value):
        store_i64(&self.control.slot_at(slot).delivered, value)

    @property
    def saved(self):
        """(position, monotonic ms) of the last save."""
        cdef control_block* block = self.control.checked()
        return load_i64(&block.delivered_saved), load_i64(&block.delivered_saved_ms)

    @saved.setter
    def saved(self, value):
        cdef control_block* block = self.control.checked()
        store_i64(&block.delivered_saved, value[0])
        store_i64(&block.delivered_saved_ms, value[1])
