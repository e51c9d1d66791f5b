"""Append: the one critical section in which messages get their place in the log.

Order inside it, and what a kill leaves (docs/concurrency.md): intent, claimed queue offsets, bytes and checksum, wrote
position (the commit point), next queue offsets, intent cleared. Source: CommitLog.asyncPutMessage, DefaultAppendMessageCallback.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.atomics cimport clock_coarse_ms, load_i64, load_u32, prefetch_for_write, release_fence, store_i64, store_u32
from cystore._native.control cimport Control, control_intact
from cystore._native.layout cimport *
from cystore._native.mapping cimport MappedFile
from cystore._native.queue_table cimport control_add_queue, control_find_queue
from cystore._native.record_write cimport append_item, crc_copy_init, failpoint, write_record

crc_copy_init()

cdef enum:
    CLAMP_REPORT_MS = 60_000
    CACHE_LINE = 64
    EXPECTED_BYTES = 4096

# StoreStatsService.getPutMessageDistributeTime: upper bounds of the latency buckets, ms; the last has none.
LATENCY_BOUNDS_MS: tuple[int, ...] = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)


cdef inline int latency_bucket(int64_t ms) noexcept nogil:
    if ms <= 0:
        return 0
    if ms < 10:
        return 1
    if ms < 50:
        return 2
    if ms < 100:
        return 3
    if ms < 200:
        return 4
    if ms < 500:
        return 5
    if ms < 5000:
        return 6 + <int>(ms // 1000)
    return 11 if ms < 10000 else 12


cdef void _end_file(control_block* block, uint8_t* p, int64_t wrote, int32_t room) noexcept nogil:
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


cdef inline void expect_write(const uint8_t* p, int32_t size) noexcept nogil:
    cdef int32_t at = 0
    while at < size and at < EXPECTED_BYTES:
        prefetch_for_write(p + at)
        at += CACHE_LINE


def end_segment(Control control not None, MappedFile file not None):
    """Ends the segment that is written to, under the append lock. False when the log does not stand inside of `file`, or its
    successor has no room yet."""
    cdef control_block* block = control.checked()
    cdef int64_t wrote = block.wrote
    if not file.writable or wrote <= file.base or wrote > file.base + file.length - BLANK_SIZE_MIN:
        return False
    if load_i64(&block.allocated) < file.base + file.length + BLANK_SIZE_MIN:
        return False
    _end_file(block, file.address + (wrote - file.base), wrote, <int32_t>(file.base + file.length - wrote))
    return True


cdef int append_locked(control_block* block, append_target* target, append_item* items, Py_ssize_t count, Py_ssize_t* done,
                       int64_t waits_since_ms) noexcept nogil:
    """Appends items[done:count] under the append lock; every run of them that fits a segment is published as one.

    `block` is the caller's: another thread's `detach` takes the target's away at any time. `waits_since_ms` (coarse clock) is
    when the caller began to wait for the lock or for room, 0 when it did not.
    """
    cdef append_item* item
    cdef int64_t wrote = block.wrote, total, room, now, at, size, took_ms
    cdef Py_ssize_t i, end
    if not control_intact(block) or wrote < target.last_seen:
        return APPEND_OVERWRITTEN
    if load_u32(&block.flags) & (FLAG_SYNC_FAILED | FLAG_NOT_WRITABLE | FLAG_DISK_FULL):
        return APPEND_REFUSED
    now = wall_clock_ms(&target.clock)
    if now < block.last_store_timestamp:
        if block.last_store_timestamp - now > CLAMP_REPORT_MS:
            block.clock_clamps += 1
        now = block.last_store_timestamp
    while done[0] < count:
        if wrote < target.base or wrote >= target.base + target.length:
            target.needed = wrote
            return APPEND_NEED_SEGMENT
        room = target.base + target.length - wrote
        total = 0
        end = done[0]
        while end < count and total + items[end].size + BLANK_SIZE_MIN <= room:
            total += items[end].size
            end += 1
        if end == done[0]:
            # Step over the end of the file only when its successor has room, or the log would end in a blank.
            size = items[end].size
            at = target.base + target.length
            if load_i64(&block.allocated) < at + size + BLANK_SIZE_MIN:
                target.needed = at + size + BLANK_SIZE_MIN
                return APPEND_NEED_SPACE
            _end_file(block, target.address + (wrote - target.base), wrote, <int32_t>room)
            wrote = at
            target.last_seen = wrote
            continue
        if load_i64(&block.allocated) < wrote + total + BLANK_SIZE_MIN:
            target.needed = wrote + total + BLANK_SIZE_MIN
            return APPEND_NEED_SPACE
        for i in range(done[0], end):
            item = &items[i]
            if item.entry == NULL:
                item.entry = control_find_queue(block, item.topic, item.topic_len, item.queue_id)
                if item.entry == NULL:
                    item.entry = control_add_queue(block, item.topic, item.topic_len, item.queue_id)
                    if item.entry == NULL:
                        return APPEND_NEED_QUEUES
                    failpoint("append.queue_added")
        block.intent_from = wrote
        block.intent_to = wrote + total
        store_u32(&block.intent_active, 1)
        failpoint("append.intent")
        block.last_store_timestamp = now
        at = wrote
        for i in range(done[0], end):
            item = &items[i]
            item.physical_offset = at
            item.store_timestamp = now
            if item.born_timestamp == -1:
                item.born_timestamp = now
            if takes_queue_offset(item.sys_flag):
                item.queue_offset = item.entry.claimed
                store_i64(&item.entry.claimed, item.queue_offset + 1)
            else:
                item.queue_offset = 0
            failpoint("append.claimed")
            at += item.size
        # From the last to the first: when everybody dies the wrote position is lost, and recovery takes what stands in the log.
        # It finds none of them until the first one is whole, and then all.
        for i in range(end - 1, done[0] - 1, -1):
            if i > done[0]:  # the CPU does not guess that the next one comes before this one
                expect_write(target.address + (items[i - 1].physical_offset - target.base), items[i - 1].size)
            write_record(target.address + (items[i].physical_offset - target.base), &items[i], target.magic)
            release_fence()
        failpoint("append.before_publish")
        wrote = at
        target.last_seen = wrote
        store_i64(&block.wrote, wrote)
        failpoint("append.published")
        store_i64(&block.last_record, wrote - items[end - 1].size)
        for i in range(done[0], end):
            item = &items[i]
            if takes_queue_offset(item.sys_flag):
                store_i64(&item.entry.next, item.queue_offset + 1)
                failpoint("append.next_set")
        store_u32(&block.intent_active, 0)
        failpoint("append.intent_cleared")
        block.append_seq += 1
        block.put_count += <uint64_t>(end - done[0])
        block.put_bytes += <uint64_t>total
        done[0] = end
    took_ms = clock_coarse_ms() - waits_since_ms if waits_since_ms else wall_clock_took_ms(&target.clock)
    block.put_latency[latency_bucket(took_ms)] += <uint64_t>count
    if took_ms > block.put_time_max_ms:
        block.put_time_max_ms = took_ms
    return APPEND_OK
