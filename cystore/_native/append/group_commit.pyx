"""Group commit of puts that wait: one sync of the log, and one report of a slave, for many of them.

Source: CommitLog.GroupCommitService, HAService.GroupTransferService. A put waits here without the interpreter's lock,
and needs that lock once more to return. The first thread that waits leads: it syncs the log for all. It does so as
cystore/engine/log/flush.py does, as long as nothing stands in its way: the range is in the segment that is appended to,
and the last record before it is whole. It leaves all else to that module.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, EAGAIN, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.append.put cimport FLUSH_REPLICATED, FLUSH_SYNC
from cystore._native.layout cimport (
    CHECKPOINT_LAST_RECORD_AT, CHECKPOINT_LAST_RECORD_CHECKSUM_AT, CHECKPOINT_PHYSIC_TIMESTAMP_AT,
    CHECKPOINT_WATERMARK_AT, FLAG_SYNC_FAILED, HOST_V4_BYTES, HOST_V6_BYTES, KEY_WORDS, LOCK_FLUSH, RECORD_MAGIC_BLANK,
    RECORD_PREFIX_BYTES, RECORD_SIZE_MIN, SYS_FLAG_BORN_HOST_V6, control_block, load_be64, record_checksum_field,
    record_magic, record_sys_flag, record_total_size
)
from cystore._native.memory.atomics cimport (
    EBUSY, add_u32, futex_wait, futex_wake_all, load_i64, load_u32, load_u64, monotonic_ns, or_u32, replace_i64,
    store_i64, store_u32, store_u64
)
from cystore._native.memory.control cimport Control
from cystore._native.memory.locks cimport (
    LOCK_TAKEN, control_intact, control_repair_due, control_trylock, control_unlock, control_wait_key,
    control_wait_puts, control_wake_key
)
from cystore._native.memory.mapping cimport MappedFile, file_status, names_file, status_of

import os

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)

cdef extern from "<endian.h>" nogil:
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)

cdef int64_t NS_PER_MS = 1_000_000
cdef int64_t TURN_NS = 50_000           # a thread appends its next message within this time, or it does something else
cdef int64_t TURNS_NS = 1_000_000       # the longest wait for a turn
cdef double GATHER_PART = 0.5   # of the last sync's time: the longest wait for more puts before a sync, and for a
                                # report after it


cdef enum Outcome:
    DONE
    LATER                       # the time is over, or a signal came
    ODD                         # the caller does it, or raises the error


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class GroupCommit:
    """The waits of one attachment. `home` is (path, device, inode) of the store's directory, if each put has to check
    that the path still leads there. `behind_max`: a slave that lacks so many bytes is not available. A put in another
    process wakes the thread that serves slaves by the key `wanted`; that thread wakes by the key `reported`."""

    def __cinit__(self, Control control not None, MappedFile checkpoint not None, home, *, int64_t behind_max,
                  uint32_t wanted, uint32_t reported, int64_t gather_max_us=1000, int64_t gather_pause_us=100):
        self.control, self.checkpoint = control, checkpoint
        self.behind_max, self.wanted_key, self.reported_key = behind_max, wanted, reported
        self.gather_max_us, self.gather_pause_us = gather_max_us, gather_pause_us
        self.slice_ms = 100
        self.base = self.home_at = -1
        self.enabled = True
        if home is not None:
            path, device, self.home_inode = home
            self.home_major, self.home_minor = os.major(device), os.minor(device)
            self.home = os.fsencode(path)
            self.home_text = PyBytes_AS_STRING(self.home)

    def name_segment(self, int64_t base, folder, int folder_fd, str name not None):
        """From now on puts lead syncs of the segment that begins at `base`: its name is `name` in the open `folder`, a
        Descriptor, whose number is `folder_fd`."""
        self.base = -1
        self.folder, self.folder_fd, self.name = folder, folder_fd, os.fsencode(name)
        self.name_text = PyBytes_AS_STRING(self.name)
        self.base = base

    def release(self):
        """Lets go of memory and descriptors. No put waits any more."""
        self.base = -1
        self.enabled = False
        self.folder = None

    def gather(self):
        """Waits for the puts that the last syncs woke: they are about to append again, and the next sync is for them,
        too. Otherwise the first of them would sync alone, and all others would wait twice as long. Under the flush
        lock."""
        cdef control_block* block = self.control.checked()
        keep = self.control.file
        with nogil:
            self._gather(block)

    cdef int reach(self, MappedFile segment, int64_t end, int flush, put_waits* waits) except -1:
        """Returns 1 when the log up to `end` is where `flush` says (FLUSH_SYNC, FLUSH_REPLICATED), or 0: then the
        caller goes on (AppendPolicy.reach), and `waits` tells what it has waited for already. `segment`: this process
        appends to it."""
        cdef Control control = self.control
        cdef control_block* block = control.block
        cdef bint replicates = flush & FLUSH_REPLICATED, flushes
        cdef int64_t epoch, behind
        cdef int outcome
        waits.disk_ms, waits.slaves_ms = 0, -1
        if block == NULL or block.pooled or control.read_only or not self.enabled:
            return 0
        keep, folder, name = control.file, self.folder, self.name
        epoch = load_i64(&block.epoch)
        flushes = flush & FLUSH_SYNC or epoch != 0
        behind = end - load_i64(&block.replicated)
        if replicates and behind > 0 and epoch == 0 and (
                load_u32(&block.in_sync_needed) or load_u32(&block.replicas) == 0 or behind >= self.behind_max):
            return 0
        if segment is not None and (segment.base != self.base or segment.private or not segment.writable):
            segment = None
        with nogil:
            store_i64(&self.turn, 0)
            outcome = self._reach(block, segment, end, flushes, replicates, epoch, waits)
            self._take_turn()
        if outcome == LATER:
            PyErr_CheckSignals()
        return outcome == DONE

    cdef bint make_durable(self, control_block* block, MappedFile segment, int64_t end,
                           int64_t until_ns) noexcept nogil:
        """Whether the log is durable up to `end` now; otherwise the caller goes on (Flusher.flush_to). For a thread
        that appends alone to `segment`."""
        if block.pooled or not self.enabled or segment.base != self.base or segment.private or not segment.writable:
            return False
        return self._flush(block, segment, end, False, False, until_ns) == DONE \
            and (end <= load_i64(&self.home_at) or self._is_home(block))

    cdef int _reach(self, control_block* block, MappedFile segment, int64_t end, bint flushes, bint replicates,
                    int64_t epoch, put_waits* waits) noexcept nogil:
        cdef int64_t begun_ns = monotonic_ns()
        cdef int64_t until_ns = begun_ns + self.slice_ms * NS_PER_MS
        cdef int outcome = DONE
        if flushes:
            outcome = self._flush(block, segment, end, True, replicates, until_ns)
            waits.disk_ms = (monotonic_ns() - begun_ns) // NS_PER_MS
            if outcome == DONE and end > load_i64(&self.home_at) and not self._is_home(block):
                return ODD
        if outcome == DONE and replicates:
            begun_ns = monotonic_ns()
            outcome = self._replicate(block, end, epoch, until_ns)
            waits.slaves_ms = (monotonic_ns() - begun_ns) // NS_PER_MS
        return outcome

    cdef void _take_turn(self) noexcept nogil:
        """Returns when it is this thread's turn to get the interpreter's lock back. One sync ends the waits of many
        threads, and one after the other gets that lock. Without turns each would go to sleep once more, on the lock,
        and be woken once more. A turn ends when its thread waits here again, or after TURN_NS."""
        cdef int64_t begun_ns = monotonic_ns(), now_ns = begun_ns, taken
        while now_ns - begun_ns < TURNS_NS:
            taken = load_i64(&self.turn)
            if (taken == 0 or now_ns - taken > TURN_NS) and replace_i64(&self.turn, taken, now_ns):
                return
            sched_yield()
            now_ns = monotonic_ns()

    cdef int _flush(self, control_block* block, MappedFile segment, int64_t end, bint gathers, bint announces,
                    int64_t until_ns) noexcept nogil:
        """Returns when the log is durable up to `end`. This thread leads when no other one does."""
        cdef uint32_t seen
        cdef int64_t left_ns
        cdef int status
        while True:
            seen = load_u32(&block.flush_seq)
            if load_i64(&block.flushed) >= end:
                return DONE
            if load_u32(&block.flags) & FLAG_SYNC_FAILED or not control_intact(block) or segment is None \
                    or self.control.block == NULL:
                return ODD
            status = control_trylock(block, LOCK_FLUSH, &self.control.me, False)
            if status == LOCK_TAKEN:
                status = DONE
                if load_i64(&block.flushed) < end:
                    status = self._lead(block, segment, gathers, announces)
                control_unlock(block, LOCK_FLUSH, &self.control.me)
                add_u32(&block.flush_seq, 1)
                futex_wake_all(&block.flush_seq)
                if status != DONE:
                    return status
                continue
            if status != EBUSY:
                return ODD
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0 or futex_wait(&block.flush_seq, seen, left_ns // NS_PER_MS + 1) == EINTR:
                return LATER

    cdef int _replicate(self, control_block* block, int64_t end, int64_t epoch, int64_t until_ns) noexcept nogil:
        """Returns when `replicated` is at least `end`, while the epoch lasts."""
        cdef uint32_t seen
        cdef int64_t left_ns
        while True:
            seen = load_u32(&block.key_seq[self.reported_key % <uint32_t>KEY_WORDS])
            if load_i64(&block.replicated) >= end:
                return DONE
            if load_i64(&block.epoch) != epoch or self.control.block == NULL:
                return ODD
            if end > load_i64(&self.announced):
                self._announce(block)
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0 or control_wait_key(block, self.reported_key, seen, left_ns // NS_PER_MS + 1) == EINTR:
                return LATER

    cdef int _lead(self, control_block* block, MappedFile segment, bint gathers, bint announces) noexcept nogil:
        """Under the flush lock: syncs what is appended, and publishes the flushed position."""
        cdef int64_t begin, last, end, begun_ns
        if control_repair_due(block, LOCK_FLUSH) or load_u32(&block.flags) & FLAG_SYNC_FAILED:
            return ODD
        if gathers:
            self._gather(block)
        begin = load_i64(&block.flushed)
        if self._last_record(block, segment, &last, &end) != DONE or begin < segment.base:
            return ODD
        if end <= begin:
            return DONE
        failpoint("flush.leading")
        if announces:
            self._announce(block)
        begun_ns = monotonic_ns()
        if self._sync(block, segment, begin, end) != DONE:
            return ODD
        self.sync_us = (monotonic_ns() - begun_ns) * 1e-3
        failpoint("flush.synced")
        self._store_watermark(segment.address + (last - segment.base), last, end)
        failpoint("flush.watermark_stored")
        if end > load_i64(&block.flushed):
            store_i64(&block.flushed, end)
        failpoint("flush.published")
        store_i64(&block.flushed_ms, begun_ns // NS_PER_MS)  # later appends are not durable
        if announces and load_i64(&block.epoch) != 0:
            self._announce(block)  # the members may have had the log before this disk had it
        self._is_home(block)  # for all puts that this sync is for
        if announces:
            self._await_report(block, end)
        return DONE

    cdef int _sync(self, control_block* block, MappedFile segment, int64_t begin, int64_t end) noexcept nogil:
        """Syncs the log [begin, end). After a failed sync the store is read-only: no later success proves anything. A
        segment without its name is lost with its last mapping, so it is not durable."""
        cdef int code = segment.sync_pages(begin - segment.base, end - segment.base)
        if code == EINTR or code == EAGAIN:
            return ODD  # the sync did not run
        if code != 0:
            block.failed_errno = code
            or_u32(&block.flags, FLAG_SYNC_FAILED)
            or_u32(&block.repair_due, 1u << LOCK_FLUSH)
            return ODD
        return DONE if names_file(self.folder_fd, self.name_text, segment) == 1 else ODD

    cdef int _last_record(self, control_block* block, MappedFile segment, int64_t* last,
                          int64_t* end) noexcept nogil:
        """The last record, and its end, read without the append lock. `last_record` follows `wrote`, so the walk
        continues from there (Flusher._appended)."""
        cdef int64_t wrote = load_i64(&block.wrote), at = load_i64(&block.last_record), size, left
        cdef const uint8_t* record
        end[0] = -1
        if at < segment.base or wrote > segment.base + <int64_t>segment.length \
                or at < load_i64(&block.min_physical_offset):
            return ODD
        while True:
            left = wrote - at
            if left < <int64_t>RECORD_SIZE_MIN:
                return DONE if left == 0 and end[0] >= 0 else ODD
            record = segment.address + (at - segment.base)
            size = record_total_size(record)
            if record_magic(record) == <uint32_t>RECORD_MAGIC_BLANK or not <int64_t>RECORD_SIZE_MIN <= size <= left:
                return ODD
            last[0], end[0] = at, at + size
            at += size

    cdef void _store_watermark(self, const uint8_t* record, int64_t last, int64_t end) noexcept nogil:
        """The timestamp first: it is that of this very record (Flusher._store_watermark). Then as
        Checkpoint.set_watermark."""
        cdef uint8_t* page = self.checkpoint.address
        cdef bint v6 = record_sys_flag(record) & <int32_t>SYS_FLAG_BORN_HOST_V6
        cdef uint64_t stored = load_be64(record + RECORD_PREFIX_BYTES + (HOST_V6_BYTES if v6 else HOST_V4_BYTES))
        self.checkpoint.touched = True
        store_u64(<uint64_t*>(page + CHECKPOINT_PHYSIC_TIMESTAMP_AT), htobe64(stored))
        store_u64(<uint64_t*>(page + CHECKPOINT_LAST_RECORD_AT), htobe64(<uint64_t>last))
        failpoint("checkpoint.last_record_stored")
        store_u32(<uint32_t*>(page + CHECKPOINT_LAST_RECORD_CHECKSUM_AT), htobe32(record_checksum_field(record)))
        failpoint("checkpoint.checksum_stored")
        store_u64(<uint64_t*>(page + CHECKPOINT_WATERMARK_AT), htobe64(<uint64_t>end))

    cdef void _gather(self, control_block* block) noexcept nogil:
        """Under the flush lock. Any process may have led the syncs before."""
        cdef uint64_t wanted = block.gathered + max(block.group_before, block.group_last), count
        if wanted > load_u64(&block.put_count):
            control_wait_puts(block, wanted, self.gather_pause_us,
                              min(<int64_t>(self.sync_us * GATHER_PART), self.gather_max_us))
        count = load_u64(&block.put_count)
        block.group_before, block.group_last = block.group_last, count - block.gathered
        block.gathered = count

    cdef void _await_report(self, control_block* block, int64_t end) noexcept nogil:
        """Waits a little for the slaves' reports, if they come soon after the sync: then each put that waits for both
        wakes once. The flushed position is published already."""
        cdef int64_t until_ns = monotonic_ns() + min(<int64_t>(self.sync_us * GATHER_PART), self.gather_max_us) * 1000
        while load_i64(&block.replicated) < end and monotonic_ns() < until_ns:
            sched_yield()

    cdef void _announce(self, control_block* block) noexcept nogil:
        """Wakes the thread that serves slaves: a put waits for them with what is appended by now. If that thread is in
        this process, its socket is the shorter way."""
        cdef int64_t wrote = load_i64(&block.wrote)
        if not self.control.ring_bell():
            control_wake_key(block, self.wanted_key)
        store_i64(&self.announced, wrote)

    cdef bint _is_home(self, control_block* block) noexcept nogil:
        """Otherwise the path may name another directory than the one that is synced (`check_place`). One look after a
        sync is for all that this sync made durable."""
        cdef int64_t flushed = load_i64(&block.flushed)
        cdef file_status found
        if self.home_text != NULL and not (
                status_of(self.home_text, &found) and found.stx_ino == self.home_inode
                and found.stx_dev_major == self.home_major and found.stx_dev_minor == self.home_minor):
            return False
        store_i64(&self.home_at, flushed)
        return True
