"""Copies records of another store to the same place of this store's log: a slave follows its master with it.

All checks of a record come before the lock. The steps under the lock are those of an append (append.pyx) in the same
order, so a kill leaves the same states. Source: CommitLog.appendData,
DefaultMessageStore.appendToCommitLog, which check nothing.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

import os

from cystore._native.record.record_view cimport (
    RECORD_BAD_LENGTH, RECORD_BAD_POSITION, RECORD_BLANK, RECORD_OK, RECORD_SHORT, record_view
)
from cystore._native.append.append cimport (
    APPEND_NEED_QUEUES, APPEND_NEED_SPACE, APPEND_OK, APPEND_OVERWRITTEN, APPEND_REFUSED, APPEND_UNREADABLE,
    FORBID_COPYING, begin_intent, end_intent, move_wrote
)
from cystore._native.memory.atomics cimport load_i64, load_u32, release_fence, store_i64, store_u64
from cystore._native.memory.control cimport Control
from cystore._native.layout cimport (
    BLANK_SIZE_MIN, RECORD_MAGIC_CYSTORE, RECORD_MAGIC_ROCKETMQ, RECORD_SIZE_MIN, SCHEDULE_TOPIC_BYTES,
    SCHEDULE_TOPIC_TEXT, TIMER_QUEUE_ID, control_block, queue_entry, takes_queue_offset
)
from cystore._native.memory.locks cimport control_intact, control_wake_queue, control_wake_sleepers
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_add_queue, control_find_queue
from cystore._native.record.property_read cimport light_begin, light_next, light_place, light_queues
from cystore._native.record.record_read cimport fetch_ahead, record_at, walk_begin
from cystore._native.record.record_write cimport failpoint

from cystore._native.record.record import STATUS_NAMES
from cystore.errors import CorruptRecordError, StoreError

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void* data, size_t count, int64_t offset)

cdef enum:
    RECORDS_MAX = 4096          # of one append, with the lock held
    BYTES_MAX = 1 << 20         # takes some 0.3 ms; a longer record is appended by itself

cdef int64_t QUEUE_OFFSET_MAX = 1 << 56
cdef int64_t GAP_MAX = 1 << 20   # of queue offsets without records in one queue; see given_up_offsets.py

cdef queue_entry* _queue_at(control_block* block, const uint8_t* topic, int topic_len, int32_t queue_id,
                            int64_t queue_offset) noexcept nogil:
    """Finds or adds a queue; a new queue begins with this offset. NULL when there is no room for it."""
    cdef queue_entry* entry = control_find_queue(block, topic, topic_len, queue_id)
    if entry != NULL:
        return entry
    entry = control_add_queue(block, topic, topic_len, queue_id)
    if entry == NULL:
        return NULL
    failpoint("copied.queue_added")
    entry.minimum = entry.claimed = queue_offset
    store_i64(&entry.dispatched, queue_offset)
    store_i64(&entry.next, queue_offset)
    return entry


cdef void _claim_light(control_block* block, copied_record* r) noexcept nogil:
    cdef light_queues remaining = r.light
    cdef light_place place
    cdef queue_entry* entry
    while light_next(&remaining, &place):
        entry = control_find_queue(block, place.name, place.name_len, 0)
        if entry.claimed <= place.queue_offset:
            store_i64(&entry.claimed, place.queue_offset + 1)


cdef void _publish_light(control_block* block, copied_record* r) noexcept nogil:
    cdef light_queues remaining = r.light
    cdef light_place place
    cdef queue_entry* entry
    while light_next(&remaining, &place):
        entry = control_find_queue(block, place.name, place.name_len, 0)
        if load_i64(&entry.next) <= place.queue_offset:
            store_i64(&entry.next, place.queue_offset + 1)


cdef void _wake_light(control_block* block, copied_record* r) noexcept nogil:
    cdef light_queues remaining = r.light
    cdef light_place place
    while light_next(&remaining, &place):
        control_wake_queue(control_find_queue(block, place.name, place.name_len, 0))


DONE = APPEND_OK
NEED_SPACE = APPEND_NEED_SPACE
NEED_QUEUES = APPEND_NEED_QUEUES
REFUSED = APPEND_REFUSED
OVERWRITTEN = APPEND_OVERWRITTEN
UNREADABLE = APPEND_UNREADABLE
WRITTEN_BYTES = WRITTEN_AT_LEAST
MARKER = NEEDS_MARKER
TIMER = NEEDS_TIMER


@cython.final
@cython.auto_pickle(False)
cdef class CopiedRecords:
    """One batch of copied records: `check` takes it, `append` writes it, `wake` wakes waiters. One thread uses it."""

    def __cinit__(self, Control control not None):
        self.control = control
        self.records = <copied_record*>PyMem_Malloc(RECORDS_MAX * sizeof(copied_record))
        if self.records == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.has_buffer:
            PyBuffer_Release(&self.buffer)
        PyMem_Free(self.records)

    def forget(self):
        """Releases the caller's bytes."""
        self.count = 0
        self.length = self.blank = self.short = 0
        if self.has_buffer:
            self.has_buffer = False
            PyBuffer_Release(&self.buffer)

    def check(self, data, Py_ssize_t begin, Py_ssize_t end, int64_t position, int64_t file_end):
        """Checks the whole records in data[begin:end] and returns their number. The first record belongs to log
        position `position`, in a file that ends at `file_end`. The bytes must not change until `forget` or the next
        `check`.

        Raises CorruptRecordError when the first is not an intact record of that place.
        """
        cdef int status
        self.forget()
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.has_buffer = True
        if not 0 <= begin <= end <= self.buffer.len or not 0 <= position <= file_end:
            raise ValueError("the range is outside of the given bytes, or the position outside of the file")
        with nogil:
            status = self.gather(<const uint8_t*>self.buffer.buf + begin, end - begin, position, file_end)
        if self.count == 0 and status not in (RECORD_OK, RECORD_SHORT, RECORD_BLANK):
            raise CorruptRecordError(f"the bytes are not an intact record: {STATUS_NAMES[status]}", offset=position)
        return self.count

    cdef int gather(self, const uint8_t* p, int64_t available, int64_t position, int64_t file_end) noexcept nogil:
        cdef record_view v
        cdef copied_record* r
        cdef int status
        cdef int64_t at = 0, fetched = 0, room
        self.position = position
        self.count = 0
        self.length = self.blank = self.short = 0
        self.needs = 0
        walk_begin(&v)
        while self.count < RECORDS_MAX and at < BYTES_MAX:
            room = file_end - self.position - at
            fetched = fetch_ahead(p, at, fetched, available)
            status = record_at(p + at, <size_t>min(available - at, room), self.position + at, file_end, True, &v)
            if status == RECORD_SHORT and available - at >= <int64_t>BLANK_SIZE_MIN:
                self.short = v.total_size
                if v.total_size + <int64_t>BLANK_SIZE_MIN > room:
                    return RECORD_BAD_LENGTH
                return status
            if status == RECORD_BLANK:
                self.blank = room
                return status
            if status != RECORD_OK:
                return status
            if v.total_size + <int64_t>BLANK_SIZE_MIN > room or not 0 <= v.queue_offset < QUEUE_OFFSET_MAX:
                return RECORD_BAD_LENGTH
            # RocketMQ's checksum does not cover the offset. Each earlier message of the queue took room of the log.
            if v.magic == RECORD_MAGIC_ROCKETMQ and v.queue_offset * <int64_t>RECORD_SIZE_MIN > self.position + at:
                return RECORD_BAD_POSITION
            r = &self.records[self.count]
            r.start = p + at
            r.at = at
            r.size = v.total_size
            r.topic, r.topic_len, r.queue_id = v.topic, v.topic_len, v.queue_id
            r.queue_offset, r.store_timestamp = v.queue_offset, v.store_timestamp
            r.has_queue_offset = takes_queue_offset(v.sys_flag)
            r.entry = NULL
            r.is_light = r.has_queue_offset and light_begin(&v, &r.light)
            if v.magic == RECORD_MAGIC_CYSTORE:
                self.needs |= NEEDS_MARKER
            if v.queue_id == <int>TIMER_QUEUE_ID and v.topic_len == SCHEDULE_TOPIC_BYTES \
                    and memcmp(v.topic, SCHEDULE_TOPIC_TEXT, SCHEDULE_TOPIC_BYTES) == 0:
                self.needs |= NEEDS_TIMER
            self.count += 1
            at += r.size
            self.length = at
        return RECORD_OK

    def append(self, MappedFile file not None, int fd=-1):
        """Writes the checked records to the segment `file`, under the append lock: through its mapping, or through the
        descriptor `fd`. Returns DONE, or the obstacle; then no record was appended. Raises StoreError when the log does
        not end where the batch begins; OSError when the system does not write, and then the append is to be
        repaired."""
        cdef control_block* block = self.control.checked()
        cdef int status
        if not file.writable or not file.base <= self.position \
                or file.base + file.length < self.position + self.length + BLANK_SIZE_MIN:
            raise StoreError("the records belong to another file", path=file.path, offset=self.position)
        if control_intact(block) and load_i64(&block.wrote) != self.position:
            raise StoreError(f"another append came first: the log ends at {load_i64(&block.wrote)}", path=file.path,
                             offset=self.position)
        with nogil:
            status = self.append_to(block, file.address + (self.position - file.base), fd, self.position - file.base)
        if status == WRITE_FAILED:
            raise OSError(self.failed, os.strerror(self.failed), file.path)
        return status

    cdef int append_to(self, control_block* block, uint8_t* p, int fd, int64_t place) noexcept nogil:
        cdef copied_record* r
        cdef Py_ssize_t i
        cdef int64_t timestamp = block.last_store_timestamp
        if not control_intact(block):
            return APPEND_OVERWRITTEN
        if load_u32(&block.flags) & FORBID_COPYING:
            return APPEND_REFUSED
        if load_i64(&block.allocated) < self.position + self.length + BLANK_SIZE_MIN:
            return APPEND_NEED_SPACE
        for i in range(self.count):
            r = &self.records[i]
            if r.has_queue_offset and not self.find_queue(block, r):
                return APPEND_NEED_QUEUES
            if r.has_queue_offset and r.queue_offset - r.entry.claimed > GAP_MAX + i:
                return APPEND_UNREADABLE
            if r.is_light and not self.find_light(block, r):
                return APPEND_NEED_QUEUES
            timestamp = max(timestamp, r.store_timestamp)
        begin_intent(block, self.position, self.position + self.length, timestamp)
        for i in range(self.count):
            r = &self.records[i]
            if r.has_queue_offset and r.entry.claimed <= r.queue_offset:
                store_i64(&r.entry.claimed, r.queue_offset + 1)
            if r.is_light:
                _claim_light(block, r)
        failpoint("copied.claimed")
        if fd >= 0:
            if not self.write(fd, place):
                return WRITE_FAILED
        else:
            for i in range(self.count - 1, -1, -1):  # the last record first: see append_items
                memcpy(p + self.records[i].at, self.records[i].start, self.records[i].size)
                release_fence()
        failpoint("copied.before_publish")
        if not move_wrote(&block.wrote, self.position + self.length):
            return APPEND_OVERWRITTEN
        failpoint("copied.published")
        store_i64(&block.last_record, self.position + self.records[self.count - 1].at)
        for i in range(self.count):
            r = &self.records[i]
            if r.has_queue_offset and load_i64(&r.entry.next) <= r.queue_offset:
                store_i64(&r.entry.next, r.queue_offset + 1)
            if r.is_light:
                _publish_light(block, r)
            if r.entry != NULL:
                store_u64(&r.entry.put_bytes, r.entry.put_bytes + r.size)
        failpoint("copied.next_set")
        end_intent(block, <uint64_t>self.count, <uint64_t>self.length)
        return APPEND_OK

    cdef bint write(self, int fd, int64_t place) noexcept nogil:
        """Writes the records, which follow each other in the caller's bytes, to the file."""
        cdef const uint8_t* start = self.records[0].start
        cdef int64_t done = 0
        cdef ssize_t written
        while done < self.length:
            written = pwrite(fd, start + done, self.length - done, place + done)
            if written > 0:
                done += written
            elif written == 0 or errno != EINTR:
                self.failed = errno if written < 0 else EIO
                return False
        return True

    cdef bint find_queue(self, control_block* block, copied_record* r) noexcept nogil:
        """Finds or adds the record's queue. A new queue begins with this record: the log may begin behind the queue's
        first messages."""
        r.entry = _queue_at(block, r.topic, r.topic_len, r.queue_id, r.queue_offset)
        return r.entry != NULL

    cdef bint find_light(self, control_block* block, copied_record* r) noexcept nogil:
        cdef light_queues remaining = r.light
        cdef light_place place
        while light_next(&remaining, &place):
            if _queue_at(block, place.name, place.name_len, 0, place.queue_offset) == NULL:
                return False
        return True

    def wake(self):
        """Wakes the threads that wait for an append. Call it after `append`, when the lock is given back."""
        self.wake_all(self.control.checked())

    cdef void wake_all(self, control_block* block) noexcept nogil:
        cdef Py_ssize_t i
        control_wake_sleepers(block)
        for i in range(self.count):
            if self.records[i].entry != NULL:
                control_wake_queue(self.records[i].entry)
            if self.records[i].is_light:
                _wake_light(block, &self.records[i])
