"""What all processes know of the work that one of them does for all: who flushed, saved and followed last, and how far.

Each word is written under the lock that layout.py names for it; whoever only looks may see the one before. They keep other processes from
doing the same again, and nothing is believed because of them.
"""

cimport cython
from libc.stdint cimport int64_t

from cystore._native.memory.atomics cimport add_u32, load_i64, raise_i64, store_i64
from cystore._native.memory.control cimport Control
from cystore._native.layout cimport *


@cython.final
@cython.auto_pickle(False)
cdef class Upkeep:
    """The part of a control block that is about upkeep. Positions are physical offsets, times are monotonic ms."""

    cdef Control control

    def __cinit__(self, Control control not None):
        self.control = control

    def raise_queue_minimum(self, int64_t slot, int64_t value):
        """Moves the minimum of a queue on, never back, whoever else moves it. Needs no lock."""
        raise_i64(&self.control._slot(slot).minimum, value)

    @property
    def followed(self):
        """The log's minimum that all queues and the index follow."""
        return load_i64(&self.control.checked().followed)

    @followed.setter
    def followed(self, int64_t value):
        store_i64(&self.control.checked().followed, value)

    @property
    def flushed_ms(self):
        """When the log was flushed last."""
        return load_i64(&self.control.checked().flushed_ms)

    @flushed_ms.setter
    def flushed_ms(self, int64_t value):
        store_i64(&self.control.checked().flushed_ms, value)

    @property
    def checkpointed(self):
        """The flushed position when the checkpoint was synced last."""
        return load_i64(&self.control.checked().checkpointed)

    @checkpointed.setter
    def checkpointed(self, int64_t value):
        store_i64(&self.control.checked().checkpointed, value)

    @property
    def checkpointed_ms(self):
        """When that was."""
        return load_i64(&self.control.checked().checkpointed_ms)

    @checkpointed_ms.setter
    def checkpointed_ms(self, int64_t value):
        store_i64(&self.control.checked().checkpointed_ms, value)

    @property
    def queues_flushed_ms(self):
        """When queues and index were flushed last."""
        return load_i64(&self.control.checked().queues_flushed_ms)

    @queues_flushed_ms.setter
    def queues_flushed_ms(self, int64_t value):
        store_i64(&self.control.checked().queues_flushed_ms, value)

    @property
    def offsets_saved(self):
        """The log position that config/queueOffset.json has."""
        return load_i64(&self.control.checked().offsets_saved)

    @offsets_saved.setter
    def offsets_saved(self, int64_t value):
        store_i64(&self.control.checked().offsets_saved, value)

    @property
    def offsets_saved_ms(self):
        """When it was written."""
        return load_i64(&self.control.checked().offsets_saved_ms)

    @offsets_saved_ms.setter
    def offsets_saved_ms(self, int64_t value):
        store_i64(&self.control.checked().offsets_saved_ms, value)

    def index_files_changed(self):
        """Index files came or went: every process lists them anew."""
        add_u32(&self.control.checked().index_seq, 1)
