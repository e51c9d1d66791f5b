/* Robust locks that all processes of a store share, in whatever PID namespace they are. Taking a free one is inline:
 * the C library's calls would be a tenth of a put.
 *
 * The kernel notices the death of an owner by two things (Documentation/locking/robust-futex-ABI.rst): the lock's word
 * holds the owner's thread id, and the lock is in a list that the thread has registered, or the thread has announced it
 * as pending. The C library owns that list, and the list has its own locks, too. Each process therefore compares once,
 * byte for byte, what the C library leaves in a mutex and in the list with what this file leaves. If they differ, the C
 * library does all the work, and writers have to share a PID namespace. Otherwise no function of the C library touches
 * the store's locks.
 *
 * The word and the 32 bits behind it, which name the owner's process (lock_owner.h), change in one instruction. A dying
 * thread that has announced a lock as pending makes the kernel call it ownerless if the word has the thread's id: also
 * when the id is that of a live owner in another namespace. So a waiter announces a lock only around that one
 * instruction, and who finds a lock ownerless asks whether its owner runs. If it does, the mark is left alone; the
 * owner's unlock clears it. */
#ifndef CYSTORE_FREE_LOCK_H
#define CYSTORE_FREE_LOCK_H

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomics.h"
#include "lock_owner.h"

/* While a lock is announced as pending. For tests. */
#ifndef LOCK_PENDING
#ifdef CYSTORE_FAILPOINTS
#include "failpoints.h"
#define LOCK_PENDING() failpoint("lock.pending")
#else
#define LOCK_PENDING() ((void)0)
#endif
#endif

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__)) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

static inline struct robust_list_head *own_list(const lock_owner *me) {
    char *thread;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(thread));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(thread));
#endif
    return (struct robust_list_head *)(thread + me->list_at);
}
/* In the C library's thread structure two fields precede the list: the thread id (and 4 bytes), and the back link. */
static inline int32_t own_thread_id(const struct robust_list_head *list) { return ((const int32_t *)list)[-4]; }
/* A link's lowest bit marks a lock of another kind. */
static inline struct robust_list *unmarked(void *link) {
    return (struct robust_list *)((uintptr_t)link & ~(uintptr_t)1);
}
static inline void **link_back(void *link) { return (void **)unmarked(link) - 1; }
static inline struct robust_list *link_of(pthread_mutex_t *mutex) {
    return (struct robust_list *)&mutex->__data.__list.__next;
}

/* The word and the owner's process. */
typedef uint64_t __attribute__((may_alias)) lock_words;
static inline uint64_t lock_seen(const pthread_mutex_t *mutex) {
    return __atomic_load_n((const lock_words *)mutex, __ATOMIC_ACQUIRE);
}
/* The owner's thread id beside the word; 0 while the lock is taken or given back. */
static inline int32_t owner_noted(const pthread_mutex_t *mutex) {
    return __atomic_load_n(&mutex->__data.__owner, __ATOMIC_ACQUIRE);
}
static inline uint32_t *lock_word(pthread_mutex_t *mutex) { return (uint32_t *)&mutex->__data.__lock; }
static inline uint32_t lock_process(uint64_t seen) { return (uint32_t)(seen >> 32); }

/* A kill can end a thread between two stores, and the kernel then reads this memory: the stores keep their order. */
#define KEEP_STORE_ORDER() __asm__ volatile("" ::: "memory")

/* Returns 1 if the lock still was as `expected`: free, or a dead owner's. A kill at any step is safe: the kernel looks
 * at the lock in `list_op_pending` too, and marks it if its word has our thread id. */
static inline int lock_take(pthread_mutex_t *mutex, const lock_owner *me, uint64_t expected, uint32_t waiters) {
    struct robust_list_head *list = own_list(me);
    struct robust_list *next;
    const uint64_t mine = (uint64_t)me->process << 32 | waiters | (uint32_t)own_thread_id(list);
    int taken;
    list->list_op_pending = link_of(mutex);
    KEEP_STORE_ORDER();
    LOCK_PENDING();
    taken = __atomic_compare_exchange_n((lock_words *)mutex, &expected, mine, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    if (taken) {
        next = list->list.next;
        link_of(mutex)->next = next;
        *link_back(link_of(mutex)) = (void *)list;
        *link_back(next) = link_of(mutex);
        KEEP_STORE_ORDER();
        list->list.next = link_of(mutex);
        mutex->__data.__owner = own_thread_id(list);
    }
    KEEP_STORE_ORDER();
    list->list_op_pending = NULL;
    return taken;
}

enum { LIST_WALK_MAX = 256 };

/* Whether this thread holds the lock, by its own list: what the lock's word says is a guess about ids. */
static inline int lock_in_own_list(pthread_mutex_t *mutex, const lock_owner *me) {
    struct robust_list_head *list = own_list(me);
    struct robust_list *link = list->list.next;
    for (int steps = 0; unmarked(link) != &list->list && steps < LIST_WALK_MAX; steps++) {
        if (link == link_of(mutex)) return 1;
        link = unmarked(link)->next;
    }
    return 0;
}

/* Whether this thread holds the lock, perhaps through another handle, whose mapping has another address. */
static inline int lock_is_mine(pthread_mutex_t *mutex, const lock_owner *me, uint64_t seen) {
    int32_t thread = (int32_t)(seen & FUTEX_TID_MASK);
    if (seen & FUTEX_OWNER_DIED) thread = owner_noted(mutex);
    if (thread != own_thread_id(own_list(me))) return 0;
    if (seen & FUTEX_OWNER_DIED && lock_process(seen) == me->process) return lock_in_own_list(mutex, me);
    return owner_is_here(me, lock_process(seen));
}

static inline int lock_is_ownerless(pthread_mutex_t *mutex, const lock_owner *me, uint64_t seen) {
    const int32_t thread = owner_noted(mutex);
    return !owner_lives(me, lock_process(seen), thread) && owner_noted(mutex) == thread;
}

static __attribute__((noinline, cold, unused)) int trylock_not_free(pthread_mutex_t *mutex, const lock_owner *me) {
    for (;;) {
        const uint64_t seen = lock_seen(mutex);
        if ((uint32_t)seen == 0) {
            if (lock_take(mutex, me, seen, 0)) return 0;
            continue;
        }
        if (lock_is_mine(mutex, me, seen)) return EDEADLK;
        if (!(seen & FUTEX_OWNER_DIED) || !lock_is_ownerless(mutex, me, seen)) return EBUSY;
        if (lock_take(mutex, me, seen, (uint32_t)seen & FUTEX_WAITERS)) return EOWNERDEAD;
    }
}

/* A waiter looks again after so long. A process that is killed just after it was woken wakes no other one; and the
 * death of an owner that was called dead falsely before wakes nobody. */
enum { LOOK_AGAIN_MS = 50, ASK_AGAIN_MS = 5 };

static __attribute__((noinline, cold, unused)) int wait_for_words(pthread_mutex_t *mutex, const lock_owner *me,
                                                                  int64_t timeout_ms) {
    const int64_t until_ns = monotonic_ns() + timeout_ms * 1000000;
    uint32_t waiters = 0; /* once it has slept: then others may sleep too, and its unlock wakes one */
    for (;;) {
        const uint64_t seen = lock_seen(mutex);
        uint32_t word = (uint32_t)seen;
        int64_t pause_ms = LOOK_AGAIN_MS, left_ns;
        if (word == 0) {
            if (lock_take(mutex, me, seen, waiters)) return 0;
            continue;
        }
        if (lock_is_mine(mutex, me, seen)) return EDEADLK;
        if (word & FUTEX_OWNER_DIED) {
            if (lock_is_ownerless(mutex, me, seen)) {
                if (lock_take(mutex, me, seen, (word & FUTEX_WAITERS) | waiters)) return EOWNERDEAD;
                continue;
            }
            pause_ms = ASK_AGAIN_MS;
        }
        left_ns = until_ns - monotonic_ns();
        if (left_ns <= 0) return ETIMEDOUT;
        if (!(word & FUTEX_WAITERS)) {
            if (!__atomic_compare_exchange_n(lock_word(mutex), &word, word | FUTEX_WAITERS, 0, __ATOMIC_ACQUIRE,
                                             __ATOMIC_RELAXED))
                continue;
            word |= FUTEX_WAITERS;
        }
        if (left_ns / 1000000 + 1 < pause_ms) pause_ms = left_ns / 1000000 + 1;
        (void)futex_wait(lock_word(mutex), word, pause_ms);
        waiters = FUTEX_WAITERS;
    }
}

/* A foreign program has overwritten a lock of this thread, and so a link of the thread's list. The list is begun anew:
 * to follow it could end the process. The thread's other locks, of the same control block, stay as they are; all
 * processes of that store have to end anyway. */
static __attribute__((noinline, cold, unused)) void lock_lost(const lock_owner *me) {
    struct robust_list_head *list = own_list(me);
    list->list.next = &list->list;
    *link_back(&list->list) = &list->list;
}

/* Returns EPERM if this thread does not hold the lock. */
static inline int lock_give(pthread_mutex_t *mutex, const lock_owner *me) {
    struct robust_list_head *list = own_list(me);
    struct robust_list *next;
    void *back;
    const uint64_t seen = lock_seen(mutex);
    if (list->list.next != link_of(mutex) && !lock_in_own_list(mutex, me)) return EPERM;
    if (lock_process(seen) != me->process ||
        (!(seen & FUTEX_OWNER_DIED) && (int32_t)(seen & FUTEX_TID_MASK) != own_thread_id(list))) {
        lock_lost(me);
        return EINVAL;
    }
    mutex->__data.__owner = 0;
    list->list_op_pending = link_of(mutex);
    KEEP_STORE_ORDER();
    next = link_of(mutex)->next;
    back = *link_back(link_of(mutex));
    *link_back(next) = back;
    unmarked(back)->next = next;
    KEEP_STORE_ORDER();
    mutex->__data.__list.__next = mutex->__data.__list.__prev = NULL;
    if (__atomic_exchange_n((lock_words *)mutex, 0, __ATOMIC_RELEASE) & FUTEX_WAITERS)
        (void)syscall(SYS_futex, lock_word(mutex), FUTEX_WAKE, 1, NULL, NULL, 0);
    KEEP_STORE_ORDER();
    list->list_op_pending = NULL;
    return 0;
}

typedef struct lock_state {
    pthread_mutex_t mutex;
    void *next, *back, *pending;
} lock_state;

static inline lock_state lock_state_of(const pthread_mutex_t *mutex, struct robust_list_head *list) {
    lock_state state = {*mutex, list->list.next, *link_back(list), list->list_op_pending};
    state.mutex.__data.__nusers = 0; /* the C library counts for itself */
    if (state.mutex.__data.__lock == 0) state.mutex.__data.__count = 0;
    return state;
}

/* Takes two locks one after the other, and gives them back in the same order. Notes each state of the first lock and of
 * the list. */
static inline int lock_states(pthread_mutex_t *first, pthread_mutex_t *second, const lock_owner *me,
                              lock_state *states) {
    struct robust_list_head *list = own_list(me);
    const int inlined = me->process != 0;
    memset(first, 0, sizeof *first);
    memset(second, 0, sizeof *second);
    if (robust_init(first) != 0 || robust_init(second) != 0) return 0;
    if (inlined ? !lock_take(first, me, 0, 0) : pthread_mutex_trylock(first) != 0) return 0;
    states[0] = lock_state_of(first, list);
    if (inlined ? !lock_take(second, me, 0, 0) : pthread_mutex_trylock(second) != 0) return 0;
    states[1] = lock_state_of(first, list);
    states[2] = lock_state_of(second, list);
    if (inlined ? lock_give(first, me) : pthread_mutex_unlock(first)) return 0;
    states[3] = lock_state_of(first, list);
    states[4] = lock_state_of(second, list);
    if (inlined ? lock_give(second, me) : pthread_mutex_unlock(second)) return 0;
    states[5] = lock_state_of(second, list);
    return 1;
}

/* Returns the distance from a thread pointer to the thread's list if the C library and this file leave the same bytes,
 * else 0. */
static inline ptrdiff_t lock_compare(void) {
    struct robust_list_head *list;
    size_t bytes;
    pthread_mutex_t first, second;
    lock_owner theirs = {0, 0, 0, 0, NULL, NULL, -1}, ours;
    lock_state states[2][6];
    memset(states, 0, sizeof states);
    if (syscall(SYS_get_robust_list, 0, &list, &bytes) != 0 || bytes != sizeof *list ||
        list->list.next != &list->list ||
        list->futex_offset != (char *)&first.__data.__lock - (char *)link_of(&first) ||
        own_thread_id(list) != (int32_t)syscall(SYS_gettid))
        return 0;
    theirs.list_at = (char *)list - (char *)own_list(&theirs);
    ours = theirs;
    ours.process = 1; /* the C library has a count in this place, which is 1 */
    if (lock_states(&first, &second, &theirs, states[0])) {
        if (states[0][0].next != link_of(&first) || *link_back(list) != (void *)&list->list) return 0;
        if (lock_states(&first, &second, &ours, states[1]) && memcmp(states[0], states[1], sizeof states[0]) == 0)
            return theirs.list_at;
    }
    list->list.next = &list->list;
    *link_back(list) = list;
    list->list_op_pending = NULL;
    return 0;
}
#else
static inline int lock_take(pthread_mutex_t *m, const lock_owner *me, uint64_t e, uint32_t w) {
    return (void)m, (void)me, (void)e, (void)w, 0;
}
static inline int lock_give(pthread_mutex_t *m, const lock_owner *me) { return (void)m, (void)me, EPERM; }
static inline int lock_is_mine(pthread_mutex_t *m, const lock_owner *me, uint64_t s) {
    return (void)m, (void)me, (void)s, 0;
}
static inline uint64_t lock_seen(const pthread_mutex_t *m) { return (void)m, 0; }
static inline uint32_t lock_process(uint64_t seen) { return (void)seen, 0; }
static inline int32_t owner_noted(const pthread_mutex_t *m) { return (void)m, 0; }
static inline int trylock_not_free(pthread_mutex_t *m, const lock_owner *me) { return (void)m, (void)me, EBUSY; }
static inline int wait_for_words(pthread_mutex_t *m, const lock_owner *me, int64_t timeout_ms) {
    return (void)m, (void)me, (void)timeout_ms, ETIMEDOUT;
}
static inline ptrdiff_t lock_compare(void) { return 0; }
#endif

#if defined(__x86_64__)
#define CPU_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define CPU_PAUSE() __asm__ volatile("yield" ::: "memory")
#else
#define CPU_PAUSE() __asm__ volatile("" ::: "memory")
#endif
/* The fields of another C library's mutex are unknown. There it is always 1, so each look becomes an attempt. */
static inline int lock_looks_free(const pthread_mutex_t *mutex) {
#ifdef __GLIBC__
    return __atomic_load_n(&mutex->__data.__lock, __ATOMIC_RELAXED) == 0;
#else
    return (void)mutex, 1;
#endif
}

/* Returns 0, EOWNERDEAD (taken, but repair first), EBUSY, EDEADLK (this thread has it), or the error of a mutex of the
 * C library. */
static inline int robust_trylock(pthread_mutex_t *mutex, const lock_owner *me) {
    if (me->list_at == 0) return pthread_mutex_trylock(mutex);
    return lock_take(mutex, me, 0, 0) ? 0 : trylock_not_free(mutex, me);
}
/* Like robust_trylock, but waits for another owner up to `timeout_ms`, and then returns ETIMEDOUT. */
static inline int robust_lock(pthread_mutex_t *mutex, const lock_owner *me, int64_t timeout_ms) {
    return me->list_at == 0 ? robust_clocklock(mutex, timeout_ms) : wait_for_words(mutex, me, timeout_ms);
}
/* After EOWNERDEAD. */
static inline void robust_consistent(pthread_mutex_t *mutex, const lock_owner *me) {
    if (me->list_at == 0) (void)pthread_mutex_consistent(mutex);
}
/* Whether this thread holds the lock, through any handle. */
static inline int robust_is_mine(pthread_mutex_t *mutex, const lock_owner *me) {
    if (me->list_at == 0) return robust_owner(mutex) == thread_id();
    return lock_is_mine(mutex, me, lock_seen(mutex));
}
/* Whether another thread of this process holds the lock, which it took through this handle. */
static inline int robust_kept_elsewhere(pthread_mutex_t *mutex, const lock_owner *me) {
    const uint64_t seen = lock_seen(mutex);
    if (me->list_at != 0) {
        if (seen == 0 || lock_process(seen) != me->process) return 0;
        if (seen & FUTEX_OWNER_DIED) return 1; /* perhaps */
    }
    return robust_owned_by_other_thread(mutex);
}
/* Thread id of the owner if it took the lock through this handle, else 0. */
static inline int32_t robust_owner_here(pthread_mutex_t *mutex, const lock_owner *me) {
    const uint64_t seen = lock_seen(mutex);
    if (me->list_at != 0 && lock_process(seen) != me->process) return 0;
    return me->list_at != 0 && seen & FUTEX_OWNER_DIED ? owner_noted(mutex) : robust_owner(mutex);
}
/* Waits without a sleep, for some SPIN_NS, until another thread gives the mutex back. An owner keeps it for some 40 ns,
 * and a sleep in the kernel and the wake-up would take longer. Returns as robust_trylock.
 *
 * A hand-over moves all cache lines that an append writes to, one by one, and each move takes longer than the append.
 * So a waiter first pauses for so long that the owner appends many times, and touches no line meanwhile. Then it looks
 * several times in a row, because it may have looked while the owner was in the middle of an append. */
enum { SPIN_NS = 100000, SPIN_PAUSE_NS = 16000, SPIN_LOOKS = 4 };
static __attribute__((noinline, cold, unused)) int robust_trylock_after_pauses(pthread_mutex_t *mutex,
                                                                               const lock_owner *me) {
    const int64_t begin = monotonic_ns();
    int64_t now = begin;
    do {
        /* Two waiters that began together do not look at the same moments. */
        const int64_t until = now + SPIN_PAUSE_NS + (now & 1023);
        do {
            for (int pause = 0; pause < 8; pause++) CPU_PAUSE();
            now = monotonic_ns();
        } while (now < until);
        for (int look = 0; look < SPIN_LOOKS; look++) {
            if (lock_looks_free(mutex)) {
                int status = robust_trylock(mutex, me);
                if (status != EBUSY) return status;
            }
            CPU_PAUSE();
        }
    } while (now - begin < SPIN_NS);
    return EBUSY;
}
static inline int robust_trylock_spinning(pthread_mutex_t *mutex, const lock_owner *me) {
    int status = robust_trylock(mutex, me);
    return status == EBUSY ? robust_trylock_after_pauses(mutex, me) : status;
}
/* Returns 0; EPERM if this thread does not hold the lock, EINVAL if a foreign program has overwritten it. */
static inline int robust_unlock(pthread_mutex_t *mutex, const lock_owner *me) {
    return me->list_at == 0 ? pthread_mutex_unlock(mutex) : lock_give(mutex, me);
}

#endif
