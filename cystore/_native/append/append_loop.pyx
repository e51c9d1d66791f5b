"""The loop of an append. Under the lock it appends until it meets an obstacle: a missing segment, a full queue table,
a disk without space, a dead owner, a lock that stays taken. Outside of the lock the policy removes the obstacle,
or raises. `return self.policy.closed()` and similar calls never return: the policy raises its error.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint32_t

from cystore._native.append.append cimport (
    APPEND_NEED_QUEUES, APPEND_NEED_SEGMENT, APPEND_NEED_SPACE, APPEND_OK, APPEND_REFUSED, APPEND_UNREADABLE,
    FILE_BYTES_MAX, NEEDS_LEASE, append_items
)
from cystore._native.append.light cimport light_wake
from cystore._native.append.put cimport FastAppender
from cystore._native.memory.atomics cimport add_u64, clock_coarse_ms, load_i64, robust_owner
from cystore._native.memory.locks cimport (
    LOCK_TAKEN, control_intact, control_lock_at, control_repair_due, control_trylock, control_unlock,
    control_wake_queue, control_wake_sleepers, wait_for_lock
)
from cystore._native.layout cimport LOCK_APPEND, control_block
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_write cimport append_item

from cystore.errors import PageCacheBusyError, StoreError


cdef void _wake(control_block* block, const append_item* items, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Wakes the threads that wait for items [begin, end), without the lock."""
    cdef Py_ssize_t i
    control_wake_sleepers(block)
    for i in range(begin, end):
        control_wake_queue(items[i].entry)
        if items[i].light_count:
            light_wake(block, &items[i])


cdef class AppendLoop(FastAppender):
    """Appends checked items, past all obstacles."""

    cdef int append(self, append_item* items, Py_ssize_t count, Py_ssize_t* done, bint may_hold_gil, int64_t busy_ms,
                    object policy, uint32_t forbidding, bint together) except -1:
        """Takes the lock and appends. Outside of the lock it lets the policy remove obstacles, and continues."""
        cdef control_block* block = self.target.block
        cdef int64_t waits_since_ms = 0
        cdef int status
        cdef Py_ssize_t before
        if block == NULL:  # another thread detached it while this thread checked the message
            return self.policy.closed()
        keep_block = self.control.file
        while True:
            if not control_intact(block):
                self.policy.overwritten()  # perhaps with its mutexes: to lock a broken mutex can end the process
            status = control_trylock(block, LOCK_APPEND, &self.control.me, False)
            if status != LOCK_TAKEN:
                waits_since_ms = waits_since_ms or clock_coarse_ms()
                try:
                    self._wait_for_lock(block, status, busy_ms)
                except PageCacheBusyError:
                    add_u64(&block.put_failed, 1)
                    raise
            if self.target.block == NULL:
                control_unlock(block, LOCK_APPEND, &self.control.me)
                return self.policy.closed()
            if control_repair_due(block, LOCK_APPEND) and control_intact(block):
                control_unlock(block, LOCK_APPEND, &self.control.me)
                self.policy.repair(busy_ms)
                continue
            keep_segment, before = self.segment, done[0]
            if may_hold_gil:
                status = append_items(block, &self.target, items, count, done, waits_since_ms, forbidding, together)
                control_unlock(block, LOCK_APPEND, &self.control.me)
                _wake(block, items, before, done[0])
            else:
                with nogil:
                    status = append_items(block, &self.target, items, count, done, waits_since_ms, forbidding, together)
                    control_unlock(block, LOCK_APPEND, &self.control.me)
                    _wake(block, items, before, done[0])
            if status == APPEND_OK:
                if self.target.slow_ms: self.report_slow_put()
                return 0
            waits_since_ms = waits_since_ms or clock_coarse_ms()
            try:
                self._mend(status, busy_ms, policy, forbidding)
            except StoreError:
                if policy is self.policy: add_u64(&block.put_failed, 1)
                raise

    cdef int _wait_for_lock(self, control_block* block, int status, int64_t busy_ms) except -1:
        """Waits for the append lock, which another thread or process holds: as long as appends continue, and at most
        `busy_ms` without an append."""
        status = wait_for_lock(self.control, block, LOCK_APPEND, status, busy_ms, &block.append_seq)
        if status != LOCK_TAKEN:
            if not control_intact(block):
                self.policy.overwritten()
            self.policy.no_lock(status, robust_owner(control_lock_at(block, LOCK_APPEND)), busy_ms)
        return 0

    cdef int _mend(self, int status, int64_t busy_ms, object policy, uint32_t forbidding) except -1:
        cdef MappedFile file = self.segment
        if status == APPEND_NEED_SEGMENT:
            if file is None or not file.base <= self.target.needed < file.base + file.length:
                file = policy.segment_at(self.target.needed)
            self._use(file, policy.faulted_in(self.target.needed, self.target.wanted), busy_ms)
        elif status == APPEND_NEED_SPACE:
            policy.make_room(self.target.needed)
        elif status == APPEND_NEED_QUEUES:
            policy.more_queues()
        elif status == APPEND_REFUSED:
            policy.not_acknowledging() if forbidding & NEEDS_LEASE else policy.refused()
        elif status == APPEND_UNREADABLE:
            self.policy.unreadable()
        else:
            policy.overwritten()
        return 0

    cdef int _use(self, MappedFile file, int64_t ready, int64_t busy_ms) except -1:
        """Writes to the segment `file` from now on, up to `ready`. Takes the lock: another thread may be appending."""
        cdef control_block* block = self.target.block
        cdef int status
        if not file.writable:
            # the segment was filled meanwhile: the loop asks again
            if block != NULL and file.base + file.length <= load_i64(&block.flushed): return 0
            return self.policy.not_for_puts(file, <int64_t>FILE_BYTES_MAX)
        if file.length > <int64_t>FILE_BYTES_MAX:
            return self.policy.not_for_puts(file, <int64_t>FILE_BYTES_MAX)
        if block == NULL:
            return self.policy.closed()
        if not control_intact(block):
            self.policy.overwritten()
        status = control_trylock(block, LOCK_APPEND, &self.control.me, False)
        if status != LOCK_TAKEN:
            self._wait_for_lock(block, status, busy_ms)
        self.segment = file
        self.target.address, self.target.base, self.target.length = file.address, file.base, file.length
        self.target.ready = min(ready, file.base + <int64_t>file.length)
        control_unlock(block, LOCK_APPEND, &self.control.me)
        return 0

    def forget_segment(self):
        """Makes the next put ask its policy for the segment again. Does nothing while a thread appends: then call
        it again."""
        cdef control_block* block = self.target.block
        if block == NULL or not control_intact(block):
            return
        if control_trylock(block, LOCK_APPEND, &self.control.me, False) == LOCK_TAKEN:
            segment, self.segment = self.segment, None
            self.target.address = NULL
            self.target.length = self.target.ready = 0
            control_unlock(block, LOCK_APPEND, &self.control.me)
            del segment  # the mapping ends after the unlock

    @property
    def segment_end(self):
        """Log position behind the segment that is written to; INT64_MAX without a segment."""
        return self.target.base + <int64_t>self.target.length if self.target.address != NULL else INT64_MAX
