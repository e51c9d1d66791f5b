"""Append: the one critical section in which messages get their place in the log.

Order inside it, and what a kill leaves (docs/concurrency.md): intent, claimed queue offsets, bytes and checksum, wrote
position (the commit point), next queue offsets, intent cleared. Source: CommitLog.asyncPutMessage, DefaultAppendMessageCallback.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cystore._native.atomics cimport clock_coarse_ms, load_i64, load_u32, release_fence, store_i64, store_u32
from cystore._native.checksum cimport crc32c_combine, crc32c_copy, crc32c_head, crc32c_update
from cystore._native.control cimport Control, control_intact
from cystore._native.layout cimport *
from cystore._native.mapping cimport MappedFile
from cystore._native.queue_table cimport control_add_queue, control_find_queue

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)

cdef enum:
    CLAMP_REPORT_MS = 60_000

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


cdef inline void write_record(append_target* target, uint8_t* p, const append_item* item) noexcept nogil:
    """The whole record; its checksum field last."""
    cdef uint8_t* at = p + 48
    cdef uint8_t* body
    cdef uint32_t checksum
    record_set_total_size(p, item.size)
    record_set_magic(p, target.magic)
    record_set_queue_id(p, item.queue_id)
    record_set_flag(p, item.flag)
    record_set_queue_offset(p, item.queue_offset)
    record_set_physical_offset(p, item.physical_offset)
    record_set_sys_flag(p, item.sys_flag)
    record_set_born_timestamp(p, item.born_timestamp)
    memcpy(at, item.born_host, item.born_host_len)
    at += item.born_host_len
    store_be64(at, <uint64_t>item.store_timestamp)
    at += 8
    memcpy(at, item.store_host, item.store_host_len)
    at += item.store_host_len
    store_be32(at, <uint32_t>item.reconsume_times)
    store_be64(at + 4, <uint64_t>item.prepared_transaction_offset)
    store_be32(at + 12, <uint32_t>item.body_len)
    body = at + 16
    at = body + item.body_len
    at[0] = <uint8_t>item.topic_len
    memcpy(at + 1, item.topic, item.topic_len)
    at += 1 + item.topic_len
    store_be16(at, <uint16_t>item.properties_len)
    if item.properties_len:  # without any the pointer may be NULL
        memcpy(at + 2, item.properties, item.properties_len)
    if target.magic == RECORD_MAGIC_ROCKETMQ:
        memcpy(body, item.body, item.body_len)
        failpoint("append.bytes_written")
        record_set_checksum_field(p, item.body_checksum)
        return
    checksum = crc32c_update(crc32c_head(&target.head, p), p + 12, body - p - 12)
    if item.has_body_checksum:
        memcpy(body, item.body, item.body_len)
        checksum = crc32c_combine(checksum, item.body_checksum, item.body_len)
    else:
        checksum = crc32c_copy(checksum, body, item.body, item.body_len)
    failpoint("append.bytes_written")
    checksum = crc32c_update(checksum, body + item.body_len, item.size - (body - p) - item.body_len)
    record_set_checksum_field(p, checksum)


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
            write_record(target, target.address + (items[i].physical_offset - target.base), &items[i])
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
