from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.memory.atomics cimport (
    CACHE_LINE_BYTES, load_i64, load_u32, prefetch_early, prefetch_for_write, release_fence, store_i64, store_u32,
    store_u64
)
from cystore._native.layout cimport (
    BLANK_SIZE_MIN, FLAG_DISK_FULL, FLAG_NOT_WRITABLE, FLAG_SLAVE, FLAG_SYNC_FAILED, PROPERTIES_BYTES_MAX,
    RECORD_FIXED_BYTES, RECORD_MAGIC_CYSTORE, TOPIC_BYTES_MAX, control_block, takes_queue_offset
)
from cystore._native.record.record_write cimport append_item, failpoint, write_record

cdef enum:
    CLAMP_REPORT_MS = 60_000
    SLOW_PUT_MS = 500           # DefaultMessageStore and CommitLog warn of longer puts
    EXPECTED_BYTES = 4096
    EARLY_BYTES = 6144          # in front of the next record of a run
    AHEAD_BYTES = 2048          # from a record to the expected place of a later record
    AHEAD_LINES = 4             # of that record at least
    FORBID_COPYING = FLAG_SYNC_FAILED | FLAG_NOT_WRITABLE | FLAG_DISK_FULL
    FORBID_WRITING = FORBID_COPYING | FLAG_SLAVE
    # not a flag of the store: a replicated put, which an elected master accepts only with a lease
    NEEDS_LEASE = 0x40000000
    # of a segment: the length of a blank has 32 bits, and RocketMQ holds the length of a file in an int
    FILE_BYTES_MAX = 0x7FFFFFFF

cdef enum AppendStatus:
    APPEND_OK = 0
    APPEND_NEED_SEGMENT = 1    # the segment at `needed` is not mapped here, or not faulted in up to `wanted`
    APPEND_NEED_SPACE = 2      # the log must be allocated up to `needed`
    APPEND_NEED_QUEUES = 3     # no allocated queue slot is left
    APPEND_REFUSED = 4         # a flag of the store forbids writing
    APPEND_OVERWRITTEN = 5     # a foreign program overwrote the control block
    APPEND_UNREADABLE = 6      # readers would refuse the record

cdef extern from "wallclock.h" nogil:
    ctypedef struct wall_clock:
        int64_t ms
        uint64_t ticks_per_ms
    int CLOCK_BOOTTIME
    int64_t clock_read_ms(int which)
    uint64_t counter_now()
    int64_t wall_clock_at(wall_clock* clock, control_block* block, uint64_t ticks)
    int64_t wall_clock_took_ms(wall_clock* clock)

# Where this process writes. While puts can run, the segment changes only under the append lock.
cdef struct append_target:
    control_block* block
    int64_t* end                # `log_end` of the block
    int64_t* last_record        # and the last record below it
    uint8_t* address
    int64_t base
    int64_t length
    int64_t ready               # log position, at most base + length: an append beyond it asks for the next pages
    uint32_t magic
    int64_t last_wrote          # wrote position after this process's last append
    int64_t needed
    int64_t wanted
    int64_t slow_ms             # duration of a slow put that is not reported yet; 0: none
    wall_clock clock

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
        at += CACHE_LINE_BYTES


cdef inline void expect_record_before(const uint8_t* p, int32_t size) noexcept nogil:
    """Prefetch, for a run of records that is written from its end: the record at `p` comes next, and the CPU does not
    guess that it stands in front of this record. The first-level cache waits for few lines at once, so the second-level
    cache gets them earlier. Lines in front of the run are fetched, too."""
    cdef int32_t at = 0
    while at < size and at < EXPECTED_BYTES:
        prefetch_for_write(p + at)
        prefetch_early(p + at - EARLY_BYTES)
        at += CACHE_LINE_BYTES


cdef inline void expect_next_records(const uint8_t* p, int32_t size) noexcept nogil:
    """Prefetch, for a record of `size` at `p`: the hardware prefetcher does not follow single appends. Later records
    are taken to be as long, so each of their lines is fetched once. A record waits for its lines before the append lock
    is given back."""
    expect_write(p + AHEAD_BYTES, max(size, AHEAD_LINES * CACHE_LINE_BYTES))


cdef inline void expect_turn(control_block* block, const append_item* item) noexcept nogil:
    """Prefetch, before the append lock is taken: if another process has appended since, its lines come all at once."""
    prefetch_for_write(&block.intent_from)
    prefetch_for_write(item.entry)


# The steps of an append, in their order, under the append lock. docs/concurrency.md lists the state that a kill between
# two of them leaves.

cdef inline bint may_acknowledge(control_block* block) noexcept nogil:
    """Whether a replicated put may begin. Without an election it always may, else only before the lease ends and with
    enough members in sync. The clock alone ends the lease: no process has to run for that."""
    if load_i64(&block.epoch) == 0:  # acquire; release in Control.epoch
        return True
    if clock_read_ms(CLOCK_BOOTTIME) >= load_i64(&block.lease_until_ms):
        return False
    return load_u32(&block.in_sync) >= load_u32(&block.in_sync_needed)


cdef inline int append_allowed(control_block* block, append_target* target, uint32_t forbidding) noexcept nogil:
    """APPEND_OK, or why no append may begin. The control block is intact. `forbidding`: the flags that forbid this
    append, and NEEDS_LEASE."""
    if target.end[0] < target.last_wrote:
        return APPEND_OVERWRITTEN
    if load_u32(&block.flags) & forbidding:  # acquire; release in Control.set_flag
        return APPEND_REFUSED
    if forbidding & NEEDS_LEASE and not may_acknowledge(block):
        return APPEND_REFUSED
    return APPEND_OK


cdef inline bint item_readable(const append_item* item) noexcept nogil:
    """Repeats the checks of `record_read`. The callers have made them too, but a record that dispatch refuses would
    stop all queues."""
    cdef int64_t size = RECORD_FIXED_BYTES + <int64_t>item.born_host_len + item.store_host_len + item.body_len \
        + item.topic_len + item.properties_len
    return (item.queue_id | item.body_len | item.properties_len) >= 0 and size == item.size \
        and item.properties_len <= <int32_t>PROPERTIES_BYTES_MAX and <uint32_t>(item.topic_len - 1) < TOPIC_BYTES_MAX


cdef inline int64_t append_now(control_block* block, append_target* target, uint64_t ticks) noexcept nogil:
    """The store timestamp, from an earlier look at the counter. It does not go back, unless the last timestamp is
    further ahead than a clock may jump: then a wrong clock made the last timestamp, and the append does not wait for
    it. If another process appended after that look, the counter is read again."""
    cdef int64_t now = wall_clock_at(&target.clock, block, ticks), ahead = block.last_store_timestamp - now
    if ahead > 0:
        now = wall_clock_at(&target.clock, block, counter_now())
        ahead = block.last_store_timestamp - now
    if 0 < ahead <= block.clock_jump_ms:
        if ahead > CLAMP_REPORT_MS:
            block.clock_clamps += 1
        now = block.last_store_timestamp
    return now


cdef inline void begin_intent(control_block* block, int64_t wrote, int64_t end, int64_t now) noexcept nogil:
    block.intent_from = wrote
    block.intent_to = end
    store_u32(&block.intent_active, 1)  # release: publishes intent_from and intent_to; acquire in Control.intent
    failpoint("append.intent")
    block.last_store_timestamp = now


cdef inline void claim_place(append_item* item, int64_t at, int64_t now) noexcept nogil:
    item.physical_offset = at
    item.store_timestamp = now
    if item.born_timestamp == -1:
        item.born_timestamp = now
    if takes_queue_offset(item.sys_flag):
        item.queue_offset = item.entry.claimed
        store_i64(&item.entry.claimed, item.queue_offset + 1)  # release; read under the append lock
    else:
        item.queue_offset = 0
    failpoint("append.claimed")


cdef inline bint move_wrote(int64_t* end, int64_t to) noexcept nogil:
    """Publishes the log's new end. Returns False and moves nothing if `to` is not ahead: a step back would overwrite
    records."""
    if to <= end[0]:
        return False
    store_i64(end, to)  # release: publishes the records; acquire in Control.wrote, queue.pxd, _native/lookup
    return True


cdef inline bint publish_records(control_block* block, append_target* target, int64_t wrote,
                                 int64_t last_record) noexcept nogil:
    failpoint("append.before_publish")
    if not move_wrote(target.end, wrote):
        return False
    target.last_wrote = wrote
    failpoint("append.published")
    store_i64(target.last_record, last_record)  # release; acquire in Control.last_record
    return True


cdef inline void publish_place(append_item* item) noexcept nogil:
    if takes_queue_offset(item.sys_flag):
        store_i64(&item.entry.next, item.queue_offset + 1)  # release; acquire in queue.pxd, queue_reader.pyx
        failpoint("append.next_set")
    store_u64(&item.entry.put_bytes, item.entry.put_bytes + item.size)


cdef inline void end_intent(control_block* block, uint64_t count, uint64_t size) noexcept nogil:
    store_u32(&block.intent_active, 0)
    failpoint("append.intent_cleared")
    block.append_seq += 1
    block.put_count += count
    block.put_bytes += size


cdef inline void count_latency(control_block* block, append_target* target, int64_t took_ms,
                               uint64_t count) noexcept nogil:
    if took_ms <= 0:
        return  # `put_count` has counted them
    block.put_latency[latency_bucket(took_ms)] += count
    if took_ms > block.put_time_max_ms:
        block.put_time_max_ms = took_ms
    if took_ms > <int64_t>SLOW_PUT_MS:
        target.slow_ms = took_ms


cdef inline int append_one(control_block* block, append_target* target, append_item* item,
                           uint64_t ticks) noexcept nogil:
    """Appends one item, whose queue is known, to a log of cystore's record format. At any obstacle it appends nothing:
    the caller then calls `append_items`. The caller has just found the control block intact, and has looked at the
    counter: `ticks`."""
    cdef int64_t wrote = target.end[0], end = wrote + item.size, now
    cdef int status = append_allowed(block, target, FORBID_WRITING)
    cdef uint8_t* p
    failpoint("append.one_begun")
    if status != APPEND_OK:
        return status
    if not item_readable(item):
        return APPEND_UNREADABLE
    if wrote < target.base or end + BLANK_SIZE_MIN > target.ready:
        return APPEND_NEED_SEGMENT
    if load_i64(&block.allocated) < end + BLANK_SIZE_MIN:  # acquire; release in Control.allocated
        return APPEND_NEED_SPACE
    p = target.address + (wrote - target.base)
    now = append_now(block, target, ticks)
    begin_intent(block, wrote, end, now)
    claim_place(item, wrote, now)
    expect_next_records(p, item.size)
    write_record(p, item, RECORD_MAGIC_CYSTORE)  # a constant magic: only code for this format
    release_fence()
    if not publish_records(block, target, end, wrote):
        return APPEND_OVERWRITTEN
    publish_place(item)
    end_intent(block, 1, item.size)
    count_latency(block, target, wall_clock_took_ms(&target.clock), 1)
    return APPEND_OK


# Appends items[done:count]. One store publishes each run of items that fits a segment. `together`: all items are one
# run in one segment; if they do not fit the rest of a segment, a blank fills that rest.
#
# The caller passes its own `block`: another thread's `detach` can set the target's to NULL at any time.
# `waits_since_ms` (coarse clock): when the caller began to wait for the lock or for room, 0 without a wait.
# `forbidding`: the flags that forbid this append.
cdef int append_items(control_block* block, append_target* target, append_item* items, Py_ssize_t count,
                      Py_ssize_t* done,
                      int64_t waits_since_ms, uint32_t forbidding, bint together) noexcept nogil
