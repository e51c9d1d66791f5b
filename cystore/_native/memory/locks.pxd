from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cystore._native.memory.atomics cimport (
    EOWNERDEAD, add_u32, and_u32, control_block_opaque, control_mutex, exchange_u32, futex_wake_all, futex_wake_bits,
    load_u32, or_u32, pthread_mutex_t, sleepers_after_unlock
)
from cystore._native.layout cimport (CONTROL_MAGIC, KEY_WORDS, LAYOUT_FINGERPRINT, control_block, process_slot,
                                     queue_entry)
from cystore._native.memory.mapping cimport MappedFile

cdef extern from "free_lock.h" nogil:
    int robust_trylock(pthread_mutex_t* mutex, const lock_owner* me)
    int robust_trylock_spinning(pthread_mutex_t* mutex, const lock_owner* me)
    int robust_lock(pthread_mutex_t* mutex, const lock_owner* me, int64_t timeout_ms)
    int robust_unlock(pthread_mutex_t* mutex, const lock_owner* me)
    void robust_consistent(pthread_mutex_t* mutex, const lock_owner* me)
    bint robust_is_mine(pthread_mutex_t* mutex, const lock_owner* me)
    bint robust_kept_elsewhere(pthread_mutex_t* mutex, const lock_owner* me)
    int32_t robust_owner_here(pthread_mutex_t* mutex, const lock_owner* me)
    ptrdiff_t lock_compare()

cdef extern from "lock_owner.h" nogil:
    ctypedef struct lock_owner:
        ptrdiff_t list_at
        uint32_t process
        int32_t pid
        uint64_t pid_namespace
        process_slot* slots
        const uint32_t* namespaces
        int32_t fd
    process_slot* process_slots_of(control_block_opaque* block)
    int slot_take(int fd, uint32_t slot)

cdef enum:
    LOCK_TAKEN = 0              # the status of success; any other status is an errno


cdef inline pthread_mutex_t* control_lock_at(control_block* block, int which) noexcept nogil:
    return control_mutex(<control_block_opaque*>block, which)


cdef inline int control_locked(control_block* block, int which, const lock_owner* me, int status) noexcept nogil:
    """Turns EOWNERDEAD into a repair that stays due until a repairer has finished it, even if a repairer is killed or
    fails. Called with the result of each attempt to lock."""
    if status == EOWNERDEAD:
        or_u32(&block.repair_due, 1u << which)
        robust_consistent(control_lock_at(block, which), me)
        return LOCK_TAKEN
    return status


# These functions take a lock and give it back. `Held` and the appenders use no others.

cdef inline int control_trylock(control_block* block, int which, const lock_owner* me, bint spinning) noexcept nogil:
    """Returns LOCK_TAKEN, else EBUSY, EDEADLK, or the error of an unusable lock. `spinning`: spins for some 100
    microseconds while another thread holds the lock. `me`: the handle's, which the unlock gets too."""
    cdef pthread_mutex_t* mutex = control_lock_at(block, which)
    return control_locked(block, which, me,
                          robust_trylock_spinning(mutex, me) if spinning else robust_trylock(mutex, me))


cdef inline int control_unlock(control_block* block, int which, const lock_owner* me) noexcept nogil:
    return robust_unlock(control_lock_at(block, which), me)


cdef inline bint control_repair_due(control_block* block, int which) noexcept nogil:
    return load_u32(&block.repair_due) & (1u << which) != 0


cdef inline bint control_intact(control_block* block) noexcept nogil:
    """False when a foreign program overwrote the control block's constants."""
    return block.magic == CONTROL_MAGIC and block.guard == ~CONTROL_MAGIC and block.fingerprint == LAYOUT_FINGERPRINT


cdef inline bint control_enter(control_block* block, int which, const lock_owner* me, bint spinning) noexcept nogil:
    """Takes a lock if it is free and no repair is due; else returns False. The caller gives the lock back with
    `control_unlock` and runs no Python code before that."""
    if not control_intact(block) or control_trylock(block, which, me, spinning) != LOCK_TAKEN:
        return False
    if control_repair_due(block, which):
        control_unlock(block, which, me)
        return False
    return True


cdef inline void control_wake_sleepers(control_block* block) noexcept nogil:
    """Called after an append, without the lock: wakes the sleepers of `SharedLocks.wait_append`."""
    if sleepers_after_unlock(&block.append_sleepers) != 0 and exchange_u32(&block.append_sleepers, 0) != 0:
        futex_wake_all(&block.append_sleepers)


cdef inline void control_wake_queue(queue_entry* entry) noexcept nogil:
    """Wakes the threads that wait for an append to this queue (`Control.wait_queue`). Called after
    `control_wake_sleepers`."""
    if load_u32(&entry.sleepers) != 0 and exchange_u32(&entry.sleepers, 0) != 0:
        futex_wake_all(&entry.sleepers)


cdef inline void control_wake_key(control_block* block, uint32_t key) noexcept nogil:
    """Wakes the waiters for a key. The word changes before the look at the sleepers' bit, so a waiter that begins
    meanwhile sees the change. It changes again after the bit is cleared, for a waiter that set the bit in between."""
    cdef uint32_t* word = &block.key_seq[key % KEY_WORDS]
    cdef uint32_t bit = 1u << (key // KEY_WORDS % 32)
    add_u32(word, 1)
    if load_u32(&block.key_sleepers[key % KEY_WORDS]) & bit:
        and_u32(&block.key_sleepers[key % KEY_WORDS], ~bit)
        add_u32(word, 1)
        futex_wake_bits(word, bit)


cdef class SharedLocks:
    cdef control_block* block
    cdef lock_owner me              # this handle as the owner of locks
    cdef readonly object file       # the MappedFile (or anonymous memory) that block points into
    cdef readonly bint read_only
    cdef uint32_t _bell             # `bell`
    cdef uint32_t ringing           # threads that ring it now
    # the repair of a dead owner's work, by the lock's number
    cdef dict repairs
    cdef object __weakref__
    cdef control_block* checked(self) except NULL
    cdef control_block* _writable(self) except NULL
    cdef int repair_now(self, int which) except -1
    cdef bint ring_bell(self) noexcept nogil


cdef class Held:
    cdef SharedLocks locks
    cdef MappedFile file            # while the lock is held: a close meanwhile must not unmap it
    cdef str name
    cdef object entered, busy
    cdef int which
    cdef int64_t timeout_ms, budget_ms, since_ns
    cdef int64_t unflushed          # of `flush_turn`: the position that the caller waits for; else -1
    cdef bint if_free
    cdef readonly bint held         # False inside the with block if another holder has the lock
    # True if that holder is this thread: a signal handler that interrupted its own turn
    cdef readonly bint mine
    cdef int _take(self) except -1
    cdef int _take_flush(self) except -2
    cdef int64_t _give(self, bint failed) noexcept


# Waits for a lock whose first attempt returned `status`. Gives up when the word `progress` (NULL: there is none) has
# not changed for `timeout_ms`; below 0 there is no limit. Returns LOCK_TAKEN, ETIMEDOUT, or the error of an unusable
# lock. Handles signals. Raises when the store is closed or its control block is overwritten.
cdef int wait_for_lock(SharedLocks locks, control_block* block, int which, int status, int64_t timeout_ms,
                       const uint32_t* progress) except -1
cdef int control_wait_key(control_block* block, uint32_t key, uint32_t expected, int64_t timeout_ms) noexcept nogil
cdef void control_wait_puts(control_block* block, uint64_t count, int64_t pause_us, int64_t limit_us) noexcept nogil
