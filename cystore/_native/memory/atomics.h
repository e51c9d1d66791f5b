/* Atomic access to shared memory, futex waits and robust locks. Loads acquire and stores release; docs/concurrency.md
   pairs them. */
#ifndef CYSTORE_ATOMICS_H
#define CYSTORE_ATOMICS_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

static inline int64_t load_i64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_i64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t load_u32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_u32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint64_t load_u64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_u64(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t add_u32(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static inline uint64_t add_u64(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline uint32_t sub_u32(uint32_t *p, uint32_t v) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }
static inline uint32_t or_u32(uint32_t *p, uint32_t v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
static inline uint32_t and_u32(uint32_t *p, uint32_t v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }
/* Stores `v` if the word still is `expected`; whether it was. */
static inline int replace_i64(int64_t *p, int64_t expected, int64_t v) {
    return __atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
/* Moves a position forward, never back, even if other threads move it at the same time. */
static inline void raise_i64(int64_t *p, int64_t v) {
    int64_t current = load_i64(p);
    while (current < v && !__atomic_compare_exchange_n(p, &current, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {
    }
}
static inline uint32_t exchange_u32(uint32_t *p, uint32_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
static inline void release_fence(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
static inline void full_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
/* Any address is allowed: a prefetch never faults. */
static inline void prefetch_for_read(const void *p) { __builtin_prefetch(p, 0); }
/* Into the second-level cache only: it waits for more lines at once than the first-level cache can. */
static inline void prefetch_early(const void *p) { __builtin_prefetch(p, 0, 2); }
static inline void prefetch_for_write(const void *p) {
#if defined(__x86_64__)
    /* The builtin prefetches for reading, unless the compiler aims at newer CPUs only. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}
/* Dirties the byte's page and changes no byte, even if other threads write to it at the same time. */
static inline void touch_byte(uint8_t *p) { (void)__atomic_fetch_or(p, 0, __ATOMIC_SEQ_CST); }

/* Big-endian words on disk that other processes read while this process writes them (index slots and counts). The
   fence of publish_be32 pairs with the fence of observe_be32. */
static inline void publish_be32(uint8_t *p, uint32_t v) {
    __atomic_thread_fence(__ATOMIC_RELEASE);
    store_be32(p, v);
}
static inline uint32_t observe_be32(const uint8_t *p) {
    uint32_t v = load_be32(p);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return v;
}

/* Returns 0 after a wake-up (real or spurious), else EAGAIN, EINTR or ETIMEDOUT. Processes share the futex. */
static inline int futex_wait(const uint32_t *word, uint32_t expected, int64_t timeout_ms) {
    struct timespec limit = {timeout_ms / 1000, (timeout_ms % 1000) * 1000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout_ms < 0 ? NULL : &limit, NULL, 0) == 0 ? 0 : errno;
}
static inline void futex_wake_all(const uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
/* Like futex_wait, but futex_wake_bits wakes the sleeper only if the two calls share a bit. */
static inline int futex_wait_bits(const uint32_t *word, uint32_t expected, uint32_t bits, int64_t timeout_ms) {
    struct timespec until;
    if (timeout_ms >= 0) {
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += timeout_ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec += 1;
        }
    }
    const struct timespec *limit = timeout_ms < 0 ? NULL : &until;
    return syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, limit, NULL, bits) == 0 ? 0 : errno;
}
static inline void futex_wake_bits(const uint32_t *word, uint32_t bits) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}

/* Reads the word that a sleeper sets (SharedLocks.wait_append). The caller has made the change that sleepers wait for,
 * and has given its lock back. The read must not overtake the change: on x86 the unlock's exchange keeps the order. */
static inline uint32_t sleepers_after_unlock(const uint32_t *word) {
#if !defined(__x86_64__)
    full_fence();
#endif
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline int32_t thread_id(void) { return (int32_t)syscall(SYS_gettid); }

static inline int robust_init(pthread_mutex_t *mutex) {
    pthread_mutexattr_t kind;
    int status = pthread_mutexattr_init(&kind);
    if (status == 0) status = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    if (status == 0) status = pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    if (status == 0) status = pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    if (status == 0) status = pthread_mutex_init(mutex, &kind);
    return status;
}
/* Returns 0, EOWNERDEAD (locked, but repair first), EDEADLK (this thread holds the mutex) or ETIMEDOUT. */
static inline int robust_clocklock(pthread_mutex_t *mutex, int64_t timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
}
/* Thread id of the owner, 0 when free or unknown. Only whether the calling thread is the owner stays true. */
static inline int32_t robust_owner(const pthread_mutex_t *mutex) {
#ifdef __GLIBC__
    return (int32_t)(mutex->__data.__lock & FUTEX_TID_MASK);
#else
    (void)mutex;
    return 0;
#endif
}
/* Whether another thread of this process holds the mutex. */
static inline int robust_owned_by_other_thread(const pthread_mutex_t *mutex) {
    int32_t owner = robust_owner(mutex);
    return owner != 0 && owner != (int32_t)syscall(SYS_gettid) && syscall(SYS_tgkill, getpid(), owner, 0) == 0;
}
/* The append lock stands beside the words that its owner writes; each other lock has a cache line of its own. */
static inline pthread_mutex_t *control_mutex(control_block *block, int which) {
    return which == LOCK_APPEND ? &block->append_lock.mutex : &block->locks[which].mutex;
}

static inline int64_t clock_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
static inline int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static inline int64_t clock_coarse_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
