"""The locks that all processes of a store share, and the words that they sleep on.

`with control.held("dispatch"):` is Python's only way into a lock. C code of one object takes the lock, repairs a dead
owner's work and gives the lock back, so no exception of a signal handler falls between these steps. The interpreter may
drop that object between the call and the with block: then its destructor gives the lock back.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

import os

from cystore._native.memory.atomics cimport (
    EAGAIN, EBUSY, EDEADLK, EINTR, ETIMEDOUT, add_u32, and_u32, full_fence, futex_wait, futex_wait_bits, load_i64,
    load_u64, monotonic_ns, robust_owner, store_u32, sub_u32
)
from cystore._native.layout cimport FLAG_SYNC_FAILED, KEY_WORDS
from cystore._native.memory.mapping cimport MappedFile
from cystore.errors import StoreClosedError, StoreFormatError, StoreLockedError, StoreNotWritableError
from cystore.layout import MUTEX_NAMES

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* data, size_t count, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef int LOCK_COUNT = len(MUTEX_NAMES)
cdef ptrdiff_t _list_at = lock_compare()

# Whether locks are taken inline here (free_lock.h). Otherwise writers have to share a PID namespace.
locks_inline = _list_at != 0
cdef int64_t WAIT_SLICE_MS = 250
cdef int64_t REPORT_EVERY_NS = 5_000_000_000
cdef int64_t FOREVER = -1       # as a timeout
cdef int64_t NO_BUDGET = -1
cdef int64_t NS_PER_MS = 1_000_000
cdef int64_t NS_PER_S = 1_000_000_000

# The longest turn under each lock; the other locks have no budget.
cdef dict BUDGETS_MS = {"housekeeping": 10, "clean": 20, "deliver": 100, "dispatch": 20, "append": 10}
cdef tuple REPAIRED = ("dispatch", "append", "flush")  # a dead owner of another lock leaves nothing to repair

cdef object _long_wait = None, _over_budget = None

OVERWRITTEN = (
    "the control block was overwritten while processes were attached; nothing was appended. Stop all of them, "
    "then open the "
    "store again: it recovers from its files"
)


def report_to(long_wait not None, over_budget not None):
    """From now on calls `long_wait(path, lock, seconds, owner)` every five seconds of a wait for a live owner, and
    `over_budget(path, lock, spent_ms, budget_ms)` after a turn that was too long."""
    global _long_wait, _over_budget
    _long_wait, _over_budget = long_wait, over_budget


@cython.no_gc_clear  # `block` needs its mapping, also while the collector clears a reference cycle
@cython.auto_pickle(False)
cdef class SharedLocks:
    """The part of a `Control` with the locks, and with the words on which processes sleep."""

    def __cinit__(self):
        self.repairs = {}
        self._bell = <uint32_t>-1
        self.me.list_at = _list_at
        self.me.pid = os.getpid()
        self.me.fd = -1

    cdef control_block* checked(self) except NULL:
        """The block. Raises StoreClosedError after a close, StoreFormatError when a foreign program overwrote it."""
        if self.block == NULL:
            raise StoreClosedError("the store is closed")
        if not control_intact(self.block):
            raise StoreFormatError(OVERWRITTEN, path=self.file.path)
        return self.block

    cdef control_block* _writable(self) except NULL:
        cdef control_block* block = self.checked()
        if self.read_only:
            raise StoreNotWritableError("the store is open for reading only", path=self.file.path)
        return block

    # ------------------------------------------------------------------------------------------- locks

    def held(self, str name not None, *, int64_t timeout_ms=FOREVER, budget_ms=None, entered=None,
             busy=StoreLockedError):
        """A with block under a lock. The work of an owner that died or failed is repaired before the block begins.

        Waits for a live owner without limit (Ctrl-C works; a long wait is reported), or up to `timeout_ms`. Then it
        raises `busy(reason, path=)`; at once if this thread is the owner. `entered` is called under the lock, before
        the block; if it raises, the lock is given back. An exception that leaves the block makes a repair due. A
        turn of more than `budget_ms` is counted.
        """
        cdef Held turn = _turn(self, name, timeout_ms, budget_ms)
        turn.entered, turn.busy = entered, busy
        return turn

    def held_if_free(self, str name not None, *, int64_t within_ms=0, budget_ms=None):
        """Like `held`, but the block also runs without the lock, if the lock is not free within `within_ms` (below 0:
        no limit) or this thread holds it already. The object that `with` gives has `held`: whether the turn has it."""
        cdef Held turn = _turn(self, name, within_ms, budget_ms)
        turn.if_free = True
        return turn

    def flush_turn(self, int64_t position, int64_t within_ms):
        """A with block for a thread that needs the log flushed up to `position`. It waits, without the interpreter's
        lock, until the flush lock is free, and the block runs with it; or until another thread has flushed the log so
        far, a sync failed, or `within_ms` is over: then the block runs without it, as in `held_if_free`."""
        cdef Held turn = _turn(self, "flush", within_ms, None)
        turn.if_free = True
        turn.unflushed = position
        return turn

    def on_repair(self, str name not None, repair):
        """From now on the next holder calls `repair()` after an owner died or failed under the lock."""
        self.repairs[MUTEX_NAMES.index(name)] = repair

    def repair_is_due(self, str name not None):
        """Whether an owner died or failed under the lock, and its work is not repaired yet."""
        return control_repair_due(self.checked(), MUTEX_NAMES.index(name))

    cdef int repair_now(self, int which) except -1:
        """Called by the holder of a lock. The repair stays due until one succeeds."""
        repair = self.repairs.get(which)
        if repair is not None:
            repair()
        elif MUTEX_NAMES[which] in REPAIRED:
            raise StoreFormatError(f"the last owner of the {MUTEX_NAMES[which]} lock died while it held it, "
                                   "and this handle cannot repair its work: open the store with cystore.open",
                                   path=self.file.path)
        and_u32(&self.checked().repair_due, ~(1u << which))
        return 0

    def owner(self, str name not None):
        """Thread id that holds a lock, 0 when it is free."""
        return robust_owner(control_lock_at(self.checked(), MUTEX_NAMES.index(name)))

    def turn_owner(self, str name not None):
        """Like `owner`, but 0 if the owner took the lock through another handle; also after a close: a turn that began
        before the close may still run. No turn begins after a close: threads take a lock under the GIL, and a thread
        that waited without the GIL sees the close and gives the lock back."""
        cdef MappedFile file = self.file
        if file is None:
            raise StoreClosedError("the store is closed")
        return robust_owner_here(control_lock_at(<control_block*>file.address, MUTEX_NAMES.index(name)), &self.me)

    @property
    def held_by_this_thread(self):
        """Whether this thread holds any lock. True in a signal handler or a finalizer that interrupted the holder."""
        cdef control_block* block = self.checked()
        cdef int which
        for which in range(LOCK_COUNT):
            if robust_is_mine(control_lock_at(block, which), &self.me):
                return True
        return False

    @property
    def turns_over_budget(self):
        """Turns under a lock, of all processes, that took more than their budget."""
        return load_u32(&self.checked().turns_over_budget)

    # --------------------------------------------------------------------------------------------- waits

    @property
    def append_sleepers(self):
        """1 while a thread may sleep until the next append. The append sets it to 0."""
        return load_u32(&self.checked().append_sleepers)

    def wait_append(self, uint32_t expected, int64_t timeout_ms):
        """Sleeps until `append_seq` differs from `expected`, at most `timeout_ms`. Signals are handled.

        The sleeper sets `append_sleepers` and sleeps on it; an append resets it and wakes all sleepers. If an append
        resets it before the sleep, the sleep ends at once. A read-only handle cannot set it, so it sleeps on
        `append_seq`; only `wake_append` and the timeout wake it.
        """
        cdef control_block* block = self.checked()
        keep = self.file  # a close meanwhile must not unmap the word that we sleep on
        with nogil:
            if self.read_only:
                futex_wait(&block.append_seq, expected, timeout_ms)
            else:
                exchange_u32(&block.append_sleepers, 1)
                full_fence()  # pairs with sleepers_after_unlock (atomics.h)
                if load_u32(&block.append_seq) == expected:
                    futex_wait(&block.append_sleepers, 1, timeout_ms)
        PyErr_CheckSignals()

    def wake_append(self):
        """Wakes all waiters for messages; also used when the store closes."""
        cdef control_block* block = self.checked()
        add_u32(&block.append_seq, 1)
        if not self.read_only:
            exchange_u32(&block.append_sleepers, 0)
        futex_wake_all(&block.append_sleepers)
        futex_wake_all(&block.append_seq)
        if not self.read_only:
            for i in range(KEY_WORDS):
                if exchange_u32(&block.key_sleepers[i], 0):
                    add_u32(&block.key_seq[i], 1)
                    futex_wake_all(&block.key_seq[i])

    def wake_committed(self):
        """After a commit moved `wrote`: wakes the threads that sleep until the next append. An append that changes
        `append_seq` at the same moment may hide this change from a thread; that thread looks again after its slice."""
        cdef control_block* block = self._writable()
        add_u32(&block.append_seq, 1)
        full_fence()
        if exchange_u32(&block.append_sleepers, 0):
            futex_wake_all(&block.append_sleepers)
        futex_wake_all(&block.append_seq)

    def key_seq(self, uint32_t key):
        """The word of a key. The caller of `wait_key` reads it before it looks at the state that it waits for."""
        return load_u32(&self.checked().key_seq[key % KEY_WORDS])

    def wait_key(self, uint32_t key, uint32_t expected, int64_t timeout_ms):
        """Sleeps until `wake_key` of this key, or of another key with the same word and bit; at most `timeout_ms`.
        Returns at once if the word is not `expected` any more. Signals are handled. Only the timeout wakes a read-only
        handle."""
        cdef control_block* block = self.checked()
        cdef uint32_t* word = &block.key_seq[key % KEY_WORDS]
        cdef uint32_t bit = 1u << (key // KEY_WORDS % 32)
        keep = self.file  # a close meanwhile must not unmap the word that we sleep on
        with nogil:
            if not self.read_only:
                or_u32(&block.key_sleepers[key % KEY_WORDS], bit)
            if load_u32(word) == expected:
                futex_wait_bits(word, expected, bit, timeout_ms)
        PyErr_CheckSignals()

    def wake_key(self, uint32_t key):
        """Wakes the waiters for a key."""
        control_wake_key(self._writable(), key)

    def ring(self):
        """Wakes the thread in this process that serves slaves; False if there is none. A bell that rings already is
        full, and stays so."""
        return self.ring_bell()

    cdef bint ring_bell(self) noexcept nogil:
        cdef bint rings
        cdef int bell
        add_u32(&self.ringing, 1)
        bell = <int>load_u32(&self._bell)
        rings = bell >= 0
        if rings:
            send(bell, b"!", 1, MSG_DONTWAIT | MSG_NOSIGNAL)
        sub_u32(&self.ringing, 1)
        return rings

    @property
    def bell(self):
        """A socket of the thread in this process that serves slaves; -1: there is none. When it is set anew, no thread
        rings the old one any more: its descriptor may be closed."""
        return <int>self._bell

    @bell.setter
    def bell(self, int socket):
        store_u32(&self._bell, <uint32_t>socket)
        full_fence()  # pairs with the change of `ringing` before the look at the bell
        with nogil:
            while load_u32(&self.ringing) != 0:
                sched_yield()

    def wait_replicated(self, int64_t end, uint32_t key, int64_t epoch, int64_t timeout_ms):
        """Sleeps until `replicated` is at least `end`; woken by `wake_key` of the key. At most `timeout_ms`, and no
        longer than the epoch lasts. Returns whether `replicated` got there. Signals are handled."""
        cdef control_block* block = self._writable()
        cdef uint32_t* word = &block.key_seq[key % KEY_WORDS]
        cdef uint32_t seen
        cdef int64_t until_ns = monotonic_ns() + timeout_ms * NS_PER_MS, left_ns
        cdef bint there = False
        keep = self.file
        with nogil:
            while True:
                seen = load_u32(word)
                there = load_i64(&block.replicated) >= end
                left_ns = until_ns - monotonic_ns()
                if there or left_ns <= 0 or load_i64(&block.epoch) != epoch or self.block == NULL \
                        or control_wait_key(block, key, seen, left_ns // NS_PER_MS + 1) == EINTR:
                    break
        PyErr_CheckSignals()
        return there

    def wait_flush(self, uint32_t expected, int64_t timeout_ms):
        """Sleeps until `flush_seq` differs from `expected`, at most `timeout_ms`."""
        cdef control_block* block = self.checked()
        keep = self.file
        with nogil:
            futex_wait(&block.flush_seq, expected, timeout_ms)
        PyErr_CheckSignals()

    @property
    def flush_seq(self):
        return load_u32(&self.checked().flush_seq)

    def wake_flush(self):
        """Called after the flushed position moved or a flush failed: wakes the waiters for it."""
        cdef control_block* block = self.checked()
        add_u32(&block.flush_seq, 1)
        futex_wake_all(&block.flush_seq)


cdef int control_wait_key(control_block* block, uint32_t key, uint32_t expected, int64_t timeout_ms) noexcept nogil:
    """Sleeps until a key's word is not `expected` any more (`control_wake_key`). Returns as futex_wait does."""
    cdef uint32_t* word = &block.key_seq[key % KEY_WORDS]
    cdef uint32_t bit = 1u << (key // KEY_WORDS % 32)
    or_u32(&block.key_sleepers[key % KEY_WORDS], bit)
    if load_u32(word) != expected:
        return EAGAIN
    return futex_wait_bits(word, expected, bit, timeout_ms)


cdef void control_wait_puts(control_block* block, uint64_t count, int64_t pause_us, int64_t limit_us) noexcept nogil:
    """Waits until `count` messages were appended in all (`put_count`); no longer than `limit_us`, and only while no
    pause between two appends is longer than `pause_us`. It yields the processor and does not sleep: these times are
    shorter than the shortest sleep."""
    cdef int64_t begun_ns = monotonic_ns(), last_ns = begun_ns, now_ns
    cdef uint64_t before = load_u64(&block.put_count), now
    while True:
        now, now_ns = load_u64(&block.put_count), monotonic_ns()
        if now != before:
            before, last_ns = now, now_ns
        if now >= count or now_ns - last_ns > pause_us * 1000 or now_ns - begun_ns > limit_us * 1000:
            break
        sched_yield()


cdef int wait_for_lock(SharedLocks locks, control_block* block, int which, int status, int64_t timeout_ms,
                       const uint32_t* progress) except -1:
    cdef pthread_mutex_t* mutex = control_lock_at(block, which)
    cdef int64_t since_ns = monotonic_ns(), told_ns = since_ns, now_ns = since_ns, piece
    cdef uint32_t last_progress = 0 if progress == NULL else load_u32(progress)
    cdef bint long_wait, late = timeout_ms == 0
    while status == EBUSY or status == ETIMEDOUT:
        if progress != NULL and load_u32(progress) != last_progress:
            last_progress = load_u32(progress)
            since_ns = told_ns = now_ns
        piece = WAIT_SLICE_MS
        if timeout_ms >= 0:
            piece = min(piece, timeout_ms - (now_ns - since_ns) // NS_PER_MS)
        if piece <= 0 and late:
            return ETIMEDOUT
        late = piece <= 0  # this thread did not run for a while: then the lock may be free
        piece = max(piece, 0)
        with nogil:
            status = control_locked(block, which, &locks.me, robust_lock(mutex, &locks.me, piece))
        now_ns = monotonic_ns()
        long_wait = status == ETIMEDOUT and now_ns - told_ns >= REPORT_EVERY_NS
        try:
            if long_wait and _long_wait is not None:
                told_ns = now_ns
                _long_wait(locks.file.path, MUTEX_NAMES[which], (now_ns - since_ns) // NS_PER_S, robust_owner(mutex))
            if status != LOCK_TAKEN:  # a handler would run under the lock; it may need that lock
                PyErr_CheckSignals()
                now_ns = monotonic_ns()
            if locks.block == NULL:
                raise StoreClosedError("the store was closed meanwhile")
            locks.checked()
        except BaseException:
            if status == LOCK_TAKEN:
                control_unlock(block, which, &locks.me)
            raise
    return status


cdef Held _turn(SharedLocks locks, str name, int64_t timeout_ms, budget_ms):
    cdef Held turn = Held.__new__(Held)
    turn.locks = locks
    turn.name = name
    turn.which = MUTEX_NAMES.index(name)
    turn.unflushed = -1
    turn.timeout_ms = timeout_ms
    turn.budget_ms = BUDGETS_MS.get(name, NO_BUDGET) if budget_ms is None else budget_ms
    return turn


cdef int _flush_lock(control_block* block, int which, const lock_owner* me, int64_t position,
                     int64_t until_ns) noexcept nogil:
    """Waits for the flush lock: LOCK_TAKEN; EAGAIN if the log is flushed up to `position`, or a sync failed; EBUSY when
    the time is over, or after a signal; else the error of the lock. A leader gives the lock back before it changes
    `flush_seq`."""
    cdef uint32_t seen
    cdef int64_t left_ns
    cdef int status
    while True:
        seen = load_u32(&block.flush_seq)
        if load_i64(&block.flushed) >= position or load_u32(&block.flags) & FLAG_SYNC_FAILED:
            return EAGAIN
        if not control_intact(block):
            return EAGAIN
        status = control_trylock(block, which, me, False)
        if status != EBUSY:
            return status
        left_ns = until_ns - monotonic_ns()
        if left_ns <= 0 or futex_wait(&block.flush_seq, seen, left_ns // NS_PER_MS + 1) == EINTR:
            return EBUSY


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class Held:
    """One turn under a lock; made by `SharedLocks.held` and `held_if_free`."""

    def __dealloc__(self):
        if self.held:
            self._give(True)

    def __enter__(self):
        cdef control_block* block = self.locks._writable()
        if self.held:
            raise StoreLockedError(f"this turn under the {self.name} lock has already begun", path=self.locks.file.path)
        self.mine = False
        self.file = self.locks.file
        if not self._take():
            return self
        self.held = True
        self.since_ns = monotonic_ns()
        try:
            if control_repair_due(block, self.which):
                self.locks.repair_now(self.which)
            if self.entered is not None:
                self.entered()
        except BaseException:
            self._give(True)
            raise
        return self

    def __exit__(self, kind, error, trace):
        cdef int64_t spent_ns
        if not self.held:
            return
        spent_ns = self._give(kind is not None)
        if 0 <= self.budget_ms * NS_PER_MS < spent_ns and _over_budget is not None:
            _over_budget(self.file.path, self.name, spent_ns / <double>NS_PER_MS, self.budget_ms)

    cdef int _take(self) except -1:
        """Returns 1 with the lock, 0 without it. Only a turn of `held_if_free` continues without it."""
        cdef SharedLocks locks = self.locks
        cdef control_block* block = locks.block
        cdef pthread_mutex_t* mutex = control_lock_at(block, self.which)
        cdef int status
        if self.unflushed >= 0:
            return self._take_flush()
        status = control_trylock(block, self.which, &locks.me, False)
        if self.if_free and (status == EBUSY or status == EDEADLK):
            self.mine = status == EDEADLK or robust_is_mine(mutex, &locks.me)
            if self.mine:
                return 0
        status = wait_for_lock(locks, block, self.which, status, self.timeout_ms, NULL)
        if status == ETIMEDOUT:
            if self.if_free:
                return 0
            raise self.busy(f"the {self.name} lock is held by thread {robust_owner(mutex)}", path=locks.file.path)
        if status == EDEADLK:
            if self.if_free:
                return 0
            raise self.busy(f"this thread holds the {self.name} lock already", path=locks.file.path)
        if status != LOCK_TAKEN:
            locks.checked()
            raise StoreFormatError(f"the {self.name} lock is unusable: {os.strerror(status)}", path=locks.file.path)
        return 1

    cdef int _take_flush(self) except -2:
        """As `_take`, for `flush_turn`."""
        cdef SharedLocks locks = self.locks
        cdef control_block* block = locks.block
        cdef int64_t until_ns = monotonic_ns() + self.timeout_ms * NS_PER_MS
        cdef int status
        with nogil:
            status = _flush_lock(block, self.which, &locks.me, self.unflushed, until_ns)
        if status != LOCK_TAKEN:
            PyErr_CheckSignals()
            locks.checked()
            if status == EDEADLK:
                self.mine = True
            elif status != EBUSY and status != EAGAIN:
                raise StoreFormatError(f"the {self.name} lock is unusable: {os.strerror(status)}", path=locks.file.path)
            return 0
        if locks.block == NULL or not control_intact(block):
            control_unlock(block, self.which, &locks.me)
            locks.checked()  # raises
        return 1

    cdef int64_t _give(self, bint failed) noexcept:
        """Gives the lock back, also after a close: all processes share the lock and would wait without end. Returns
        how long it was held, in ns. A child that was forked during the turn does nothing, because the parent holds the
        lock. If another thread collects this object, it cannot unlock: the lock is released when its owner ends."""
        cdef control_block* block = <control_block*>self.file.address
        cdef pthread_mutex_t* mutex = control_lock_at(block, self.which)
        cdef int32_t owner = robust_owner(mutex)
        cdef int64_t spent_ns = monotonic_ns() - self.since_ns
        self.held = False
        if failed and (owner == 0 or robust_is_mine(mutex, &self.locks.me)):
            or_u32(&block.repair_due, 1u << self.which)
        if 0 <= self.budget_ms * NS_PER_MS < spent_ns:
            add_u32(&block.turns_over_budget, 1)
        if control_unlock(block, self.which, &self.locks.me) != 0 and robust_kept_elsewhere(mutex, &self.locks.me):
            # Leaks the mapping: the owner's next lock reads this memory, and a leaked page is better than a crash.
            Py_INCREF(self.file)
        return spent_ns
