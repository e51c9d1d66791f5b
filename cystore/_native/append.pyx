"""Append: the one critical section in which messages get their place in the log.

Order inside it, and what a kill leaves (docs/concurrency.md): intent, claimed queue offsets, bytes and checksum, wrote
position (the commit point), next queue offsets, intent cleared. Source: CommitLog.asyncPutMessage, DefaultAppendMessageCallback.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.atomics cimport load_i64, store_i64, store_u32
from cystore._native.control cimport Control
from cystore._native.layout cimport *
from cystore._native.mapping cimport MappedFile
from cystore._native.record_write cimport append_item, failpoint

# StoreStatsService.getPutMessageDistributeTime: upper bounds of the latency buckets, ms; the last has none.
LATENCY_BOUNDS_MS: tuple[int, ...] = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)


cdef void end_file(control_block* block, uint8_t* p, int64_t wrote, int32_t room) noexcept nogil:
    """Fills the room that is left in a file with a blank and publishes that: appends go on in the next."""
    block.intent_from = wrote
    block.intent_to = wrote + BLANK_SIZE_MIN
    store_u32(&block.intent_active, 1)
    failpoint("append.blank_intent")
    record_set_total_size(p, room)
    record_set_magic(p, RECORD_MAGIC_BLANK)
    failpoint("append.blank_written")
    store_i64(&block.wrote, wrote + room)
    failpoint("append.blank_published")
    store_u32(&block.intent_active, 0)


def end_segment(Control control not None, MappedFile file not None):
    """Ends the segment that is written to, under the append lock. False when the log does not stand inside of `file`, or its
    successor has no room yet."""
    cdef control_block* block = control.checked()
    cdef int64_t wrote = block.wrote
    if not file.writable or wrote <= file.base or wrote > file.base + file.length - BLANK_SIZE_MIN:
        return False
    if load_i64(&block.allocated) < file.base + file.length + BLANK_SIZE_MIN:
        return False
    end_file(block, file.address + (wrote - file.base), wrote, <int32_t>(file.base + file.length - wrote))
    return True


cdef int append_locked(control_block* block, append_target* target, append_item* items, Py_ssize_t count, Py_ssize_t* done,
                       int64_t waits_since_ms) noexcept nogil:
    return append_items(block, target, items, count, done, waits_since_ms)
