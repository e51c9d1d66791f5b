"""Append: the critical section that gives messages their place in the log.

Its steps, in order: intent, claimed queue offsets, bytes and checksum, wrote position (the commit point), next queue
offsets, intent cleared. docs/concurrency.md lists the state that a kill leaves. Source: CommitLog.asyncPutMessage,
DefaultAppendMessageCallback.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.append.light cimport light_claim, light_claims, light_prepare, light_publish
from cystore._native.memory.atomics cimport clock_coarse_ms, load_i64, release_fence, store_u32
from cystore._native.memory.control cimport Control, log_end
from cystore._native.layout cimport RECORD_MAGIC_BLANK, record_set_magic, record_set_total_size
from cystore._native.memory.locks cimport control_intact
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_add_queue, control_find_queue
from cystore._native.record.record_write cimport append_item, failpoint, write_record

# StoreStatsService.getPutMessageDistributeTime: upper bounds of the latency buckets, ms; the last bucket has none.
LATENCY_BOUNDS_MS: tuple[int, ...] = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)


cdef bint end_file(control_block* block, int64_t* end, uint8_t* p, int64_t wrote, int64_t room) noexcept nogil:
    """Fills the rest of a file with a blank and publishes it: appends continue in the next file. False when the length
    of the rest does not fit a blank, which has 32 bits for it, or when the wrote position cannot move."""
    if not <int64_t>BLANK_SIZE_MIN <= room <= FILE_BYTES_MAX:
        return False
    block.intent_from = wrote
    block.intent_to = wrote + BLANK_SIZE_MIN
    store_u32(&block.intent_active, 1)
    failpoint("append.blank_intent")
    record_set_total_size(p, <int32_t>room)
    record_set_magic(p, RECORD_MAGIC_BLANK)
    failpoint("append.blank_written")
    if not move_wrote(end, wrote + room):
        return False
    failpoint("append.blank_published")
    store_u32(&block.intent_active, 0)
    return True


def end_segment(Control control not None, MappedFile file not None):
    """Ends the segment `file`, under the append lock. False when the log does not end inside `file`, or the next file
    has no room yet."""
    cdef control_block* block = control.checked()
    cdef int64_t* end = log_end(block)
    cdef int64_t wrote = end[0]
    if not file.writable or wrote <= file.base or wrote > file.base + file.length - BLANK_SIZE_MIN:
        return False
    if load_i64(&block.allocated) < file.base + file.length + BLANK_SIZE_MIN:
        return False
    return end_file(block, end, file.address + (wrote - file.base), wrote, file.base + file.length - wrote)


cdef int append_items(control_block* block, append_target* target, append_item* items, Py_ssize_t count,
                      Py_ssize_t* done,
                      int64_t waits_since_ms, uint32_t forbidding, bint together) noexcept nogil:
    cdef append_item* item
    cdef int64_t wrote = target.end[0], total, room, now, at, size
    cdef Py_ssize_t i, end, begin = done[0]
    cdef light_claims claims
    cdef int status = append_allowed(block, target, forbidding) if control_intact(block) else APPEND_OVERWRITTEN
    failpoint("append.many_begun")
    if status != APPEND_OK:
        return status
    for i in range(begin, count):
        if not item_readable(&items[i]):
            return APPEND_UNREADABLE
    now = append_now(block, target, counter_now())
    while begin < count:
        if wrote < target.base or wrote >= target.base + target.length:
            target.needed = wrote
            target.wanted = wrote + items[begin].size + BLANK_SIZE_MIN
            return APPEND_NEED_SEGMENT
        claims.count = 0
        # The next offsets of light queues depend on the messages before: such a message is a run by itself.
        if items[begin].light_count and not light_prepare(block, &items[begin], &claims):
            return APPEND_NEED_QUEUES
        room = target.base + target.length - wrote
        total = 0
        end = begin
        while end < count and total + items[end].size + BLANK_SIZE_MIN <= room \
                and (end == begin or not (claims.count or items[end].light_count)):
            total += items[end].size
            end += 1
        size = items[begin].size
        if together and end < count:  # all items go to the next file
            for i in range(begin + 1, count):
                size += items[i].size
            if size + BLANK_SIZE_MIN > target.length:
                return APPEND_UNREADABLE  # the caller has checked that a file holds them
            end = begin
        if end == begin:
            # Steps over the end of the file only when the next file has room: the log must not end in a blank.
            at = target.base + target.length
            if load_i64(&block.allocated) < at + size + BLANK_SIZE_MIN:
                target.needed = at + size + BLANK_SIZE_MIN
                return APPEND_NEED_SPACE
            if not end_file(block, target.end, target.address + (wrote - target.base), wrote, room):
                return APPEND_OVERWRITTEN
            wrote = at
            target.last_wrote = wrote
            continue
        if load_i64(&block.allocated) < wrote + total + BLANK_SIZE_MIN:
            target.needed = wrote + total + BLANK_SIZE_MIN
            return APPEND_NEED_SPACE
        if wrote + total + BLANK_SIZE_MIN > target.ready:
            target.needed = wrote
            target.wanted = wrote + total + BLANK_SIZE_MIN
            return APPEND_NEED_SEGMENT
        for i in range(begin, end):
            item = &items[i]
            if item.entry == NULL:
                item.entry = control_find_queue(block, item.topic, item.topic_len, item.queue_id)
                if item.entry == NULL:
                    item.entry = control_add_queue(block, item.topic, item.topic_len, item.queue_id)
                    if item.entry == NULL:
                        return APPEND_NEED_QUEUES
                    failpoint("append.queue_added")
        begin_intent(block, wrote, wrote + total, now)
        at = wrote
        for i in range(begin, end):
            claim_place(&items[i], at, now)
            at += items[i].size
        if claims.count:
            light_claim(&claims)
        # Writes the last record first. If all processes die, the wrote position is lost, and recovery takes the records
        # that are in the log. It finds no record of this run until the first record is whole, and then all of them.
        for i in range(end - 1, begin - 1, -1):
            if i > begin:
                expect_record_before(target.address + (items[i - 1].physical_offset - target.base), items[i - 1].size)
            if count == 1:
                expect_next_records(target.address + (items[i].physical_offset - target.base), items[i].size)
            write_record(target.address + (items[i].physical_offset - target.base), &items[i], target.magic)
            release_fence()
        wrote = at
        if not publish_records(block, target, wrote, wrote - items[end - 1].size):
            return APPEND_OVERWRITTEN
        for i in range(begin, end):
            publish_place(&items[i])
        if claims.count:
            light_publish(&claims)
        end_intent(block, <uint64_t>(end - begin), <uint64_t>total)
        begin = end
        done[0] = end
    count_latency(block, target, clock_coarse_ms() - waits_since_ms if waits_since_ms else
                  wall_clock_took_ms(&target.clock), <uint64_t>count)
    return APPEND_OK
