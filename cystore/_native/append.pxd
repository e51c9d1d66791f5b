from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.atomics cimport clock_coarse_ms, load_i64, load_u32, prefetch_for_write, release_fence, store_i64, store_u32
from cystore._native.control cimport control_intact
from cystore._native.layout cimport *
from cystore._native.queue_table cimport control_add_queue, control_find_queue
from cystore._native.record_write cimport append_item, failpoint, write_record

cdef enum:
    CLAMP_REPORT_MS = 60_000
    CACHE_LINE = 64
    EXPECTED_BYTES = 4096
    AHEAD_BYTES = 1024          # from a record to where one of the next will be
    AHEAD_LINES = 4

cdef enum AppendStatus:
    APPEND_OK = 0
    APPEND_NEED_SEGMENT = 1    # the segment at `needed` is not mapped here
    APPEND_NEED_SPACE = 2      # the log must be allocated up to `needed`
    APPEND_NEED_QUEUES = 3     # no allocated queue slot is left
    APPEND_REFUSED = 4         # a flag of the store forbids writing
    APPEND_OVERWRITTEN = 5     # the control block is not what we left

cdef extern from "wallclock.h" nogil:
    ctypedef struct wall_clock:
        int64_t ms
    int64_t wall_clock_ms(wall_clock* clock)
    int64_t wall_clock_took_ms(wall_clock* clock)

# Where this process writes: the mapped segment, and what it saw last. Touched under the append lock only.
cdef struct append_target:
    control_block* block
    uint8_t* address
    int64_t base
    int64_t length
    uint32_t magic
    int64_t last_seen
    int64_t needed
    wall_clock clock

cdef inline bint takes_queue_offset(int32_t sys_flag) noexcept nogil:
    """Prepared and rollback messages have no place in a consume queue."""
    cdef uint32_t transaction = <uint32_t>sys_flag & SYS_FLAG_TRANSACTION_MASK
    return transaction == 0 or transaction == SYS_FLAG_COMMIT

# Fills the room that is left in a file with a blank and publishes that: appends go on in the next.
cdef void end_file(control_block* block, uint8_t* p, int64_t wrote, int32_t room) noexcept nogil


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


cdef inline void expect_write(const uint8_t* p, int32_t size) noexcept nogil:
    cdef int32_t at = 0
    while at < size and at < EXPECTED_BYTES:
        prefetch_for_write(p + at)
        at += CACHE_LINE


cdef inline int append_items(control_block* block, append_target* target, append_item* items, Py_ssize_t count, Py_ssize_t* done,
                             int64_t waits_since_ms) noexcept nogil:
    """Appends items[done:count] under the append lock; every run of them that fits a segment is published as one.

    `block` is the caller's: another thread's `detach` takes the target's away at any time. `waits_since_ms` (coarse clock) is
    when the caller began to wait for the lock or for room, 0 when it did not.
    """
    cdef append_item* item
    cdef int64_t wrote = block.wrote, total, room, now, at, size, took_ms
    cdef Py_ssize_t i, end, begin = 0 if count == 1 else done[0]  # a constant count makes the loops straight
    if not control_intact(block) or wrote < target.last_seen:
        return APPEND_OVERWRITTEN
    if load_u32(&block.flags) & (FLAG_SYNC_FAILED | FLAG_NOT_WRITABLE | FLAG_DISK_FULL):
        return APPEND_REFUSED
    now = wall_clock_ms(&target.clock)
    if now < block.last_store_timestamp:
        if block.last_store_timestamp - now > CLAMP_REPORT_MS:
            block.clock_clamps += 1
        now = block.last_store_timestamp
    while begin < count:
        if wrote < target.base or wrote >= target.base + target.length:
            target.needed = wrote
            return APPEND_NEED_SEGMENT
        room = target.base + target.length - wrote
        total = 0
        end = begin
        while end < count and total + items[end].size + BLANK_SIZE_MIN <= room:
            total += items[end].size
            end += 1
        if end == begin:
            # Step over the end of the file only when its successor has room, or the log would end in a blank.
            size = items[end].size
            at = target.base + target.length
            if load_i64(&block.allocated) < at + size + BLANK_SIZE_MIN:
                target.needed = at + size + BLANK_SIZE_MIN
                return APPEND_NEED_SPACE
            end_file(block, target.address + (wrote - target.base), wrote, <int32_t>room)
            wrote = at
            target.last_seen = wrote
            continue
        if load_i64(&block.allocated) < wrote + total + BLANK_SIZE_MIN:
            target.needed = wrote + total + BLANK_SIZE_MIN
            return APPEND_NEED_SPACE
        for i in range(begin, end):
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
        for i in range(begin, end):
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
        for i in range(end - 1, begin - 1, -1):
            if i > begin:  # the CPU does not guess that the next one comes before this one
                expect_write(target.address + (items[i - 1].physical_offset - target.base), items[i - 1].size)
            if count == 1:  # nor how far the next ones will go, when they come one by one
                expect_write(target.address + (items[i].physical_offset - target.base) + AHEAD_BYTES, AHEAD_LINES * CACHE_LINE)
            write_record(target.address + (items[i].physical_offset - target.base), &items[i], target.magic)
            release_fence()
        failpoint("append.before_publish")
        wrote = at
        target.last_seen = wrote
        store_i64(&block.wrote, wrote)
        failpoint("append.published")
        store_i64(&block.last_record, wrote - items[end - 1].size)
        for i in range(begin, end):
            item = &items[i]
            if takes_queue_offset(item.sys_flag):
                store_i64(&item.entry.next, item.queue_offset + 1)
                failpoint("append.next_set")
        store_u32(&block.intent_active, 0)
        failpoint("append.intent_cleared")
        block.append_seq += 1
        block.put_count += <uint64_t>(end - begin)
        block.put_bytes += <uint64_t>total
        begin = end
        done[0] = end
    took_ms = clock_coarse_ms() - waits_since_ms if waits_since_ms else wall_clock_took_ms(&target.clock)
    block.put_latency[latency_bucket(took_ms)] += <uint64_t>count
    if took_ms > block.put_time_max_ms:
        block.put_time_max_ms = took_ms
    return APPEND_OK


# `append_items` for any number of them.
cdef int append_locked(control_block* block, append_target* target, append_item* items, Py_ssize_t count, Py_ssize_t* done,
                       int64_t waits_since_ms) noexcept nogil
