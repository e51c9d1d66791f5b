/* Takes and gives back a free robust mutex inline. It stores the same bytes as the C library, but without the C
 * library's calls, which would be a tenth of a put.
 *
 * The kernel notices the death of an owner by two things (Documentation/locking/robust-futex-ABI.rst): the mutex's word
 * holds the owner's thread id, and the mutex is in a list that the thread has registered. The C library owns that list
 * and the other fields. Each module that includes this file therefore compares once, byte for byte, the memory that the
 * C library leaves with the memory that this file leaves. If they differ, and whenever a mutex is not free, the C
 * library does all the work. Both may work on the same mutex at any time. */
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

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))

/* Distance from a thread pointer to that thread's list of robust mutexes. 0: the C library does all the work. */
static ptrdiff_t own_list_at;

static inline struct robust_list_head *own_list(void) {
    char *thread;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(thread));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(thread));
#endif
    return (struct robust_list_head *)(thread + own_list_at);
}
/* In the C library's thread structure two fields precede the list: the thread id (and 4 bytes), and the back link. */
static inline int32_t own_thread_id(const struct robust_list_head *list) { return ((const int32_t *)list)[-4]; }
static inline void **link_back(struct robust_list_head *list) { return (void **)list - 1; }
static inline struct robust_list *link_of(pthread_mutex_t *mutex) {
    return (struct robust_list *)&mutex->__data.__list.__next;
}

/* A kill can end a thread between two stores, and the kernel then reads this memory: the stores keep their order. */
#define KEEP_STORE_ORDER() __asm__ volatile("" ::: "memory")

/* Returns 1 if the mutex was free. A kill at any step is safe: the kernel looks at the mutex in `list_op_pending` too,
 * and releases it if its word has our thread id. A mutex in the state ENOTRECOVERABLE would look free too. No mutex
 * gets into that state: a thread that finds a dead owner makes the mutex consistent at once (control_locked). */
static inline int free_lock_take(pthread_mutex_t *mutex) {
    struct robust_list_head *list = own_list();
    int free_word = 0, taken;
    if (own_list_at == 0 || list->list.next != &list->list) return 0;
    list->list_op_pending = link_of(mutex);
    KEEP_STORE_ORDER();
    taken = __atomic_compare_exchange_n(&mutex->__data.__lock, &free_word, own_thread_id(list), 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED);
    if (taken) {
        mutex->__data.__list.__next = mutex->__data.__list.__prev = (void *)list;
        *link_back(list) = link_of(mutex);
        KEEP_STORE_ORDER();
        list->list.next = link_of(mutex);
        mutex->__data.__count = 1;
        mutex->__data.__owner = own_thread_id(list);
        mutex->__data.__nusers++;
    }
    KEEP_STORE_ORDER();
    list->list_op_pending = NULL;
    return taken;
}

/* Returns 1 if this thread held the mutex and no other robust mutex. Else it does nothing and returns 0. */
static inline int free_lock_give(pthread_mutex_t *mutex) {
    struct robust_list_head *list = own_list();
    if (own_list_at == 0 || list->list.next != link_of(mutex) || link_of(mutex)->next != &list->list) return 0;
    mutex->__data.__owner = 0;
    mutex->__data.__nusers--;
    list->list_op_pending = link_of(mutex);
    KEEP_STORE_ORDER();
    *link_back(list) = list;
    list->list.next = &list->list;
    mutex->__data.__list.__next = mutex->__data.__list.__prev = NULL;
    if (__atomic_exchange_n(&mutex->__data.__lock, 0, __ATOMIC_RELEASE) & FUTEX_WAITERS)
        (void)syscall(SYS_futex, &mutex->__data.__lock, FUTEX_WAKE, 1, NULL, NULL, 0);
    KEEP_STORE_ORDER();
    list->list_op_pending = NULL;
    return 1;
}

typedef struct lock_state {
    pthread_mutex_t mutex;
    void *next, *back, *pending;
} lock_state;

static inline lock_state lock_state_of(const pthread_mutex_t *mutex, struct robust_list_head *list) {
    lock_state state = {*mutex, list->list.next, *link_back(list), list->list_op_pending};
    return state;
}

/* Returns 1 if the C library and this file leave the same bytes. A module calls it when it is imported. */
static inline int free_lock_compare(void) {
    struct robust_list_head *list;
    size_t bytes;
    pthread_mutex_t mutex;
    lock_state theirs[2], ours[2];
    memset(&mutex, 0, sizeof mutex);
    if (syscall(SYS_get_robust_list, 0, &list, &bytes) != 0 || bytes != sizeof *list ||
        list->list.next != &list->list ||
        list->futex_offset != (char *)&mutex.__data.__lock - (char *)link_of(&mutex) ||
        own_thread_id(list) != (int32_t)syscall(SYS_gettid) || robust_init(&mutex) != 0)
        return 0;
    if (pthread_mutex_trylock(&mutex) != 0) return 0;
    theirs[0] = lock_state_of(&mutex, list);
    pthread_mutex_unlock(&mutex);
    theirs[1] = lock_state_of(&mutex, list);
    if (theirs[0].next != link_of(&mutex) || theirs[0].back != link_of(&mutex) || theirs[1].back != list) return 0;
    own_list_at = 0;
    own_list_at = (char *)list - (char *)own_list();
    if (free_lock_take(&mutex)) {
        ours[0] = lock_state_of(&mutex, list);
        if (free_lock_give(&mutex)) {
            ours[1] = lock_state_of(&mutex, list);
            if (memcmp(ours, theirs, sizeof ours) == 0) return 1;
        }
    }
    list->list.next = &list->list;
    *link_back(list) = list;
    own_list_at = 0;
    return 0;
}
#else
static inline int free_lock_take(pthread_mutex_t *mutex) { return (void)mutex, 0; }
static inline int free_lock_give(pthread_mutex_t *mutex) { return (void)mutex, 0; }
static inline int free_lock_compare(void) { return 0; }
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

/* Like pthread_mutex_trylock. */
static inline int robust_trylock(pthread_mutex_t *mutex) {
    return free_lock_take(mutex) ? 0 : pthread_mutex_trylock(mutex);
}
/* Waits without a sleep, for some SPIN_NS, until another thread gives the mutex back. An owner keeps it for some 40 ns,
 * and a sleep in the kernel and the wake-up would take longer. Returns as robust_trylock.
 *
 * A hand-over moves all cache lines that an append writes to, one by one, and each move takes longer than the append.
 * So a waiter first pauses for so long that the owner appends many times, and touches no line meanwhile. Then it looks
 * several times in a row, because it may have looked while the owner was in the middle of an append. */
enum { SPIN_NS = 100000, SPIN_PAUSE_NS = 16000, SPIN_LOOKS = 4 };
static __attribute__((noinline, cold, unused)) int robust_trylock_after_pauses(pthread_mutex_t *mutex) {
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
                int status = robust_trylock(mutex);
                if (status != EBUSY) return status;
            }
            CPU_PAUSE();
        }
    } while (now - begin < SPIN_NS);
    return EBUSY;
}
static inline int robust_trylock_spinning(pthread_mutex_t *mutex) {
    int status = robust_trylock(mutex);
    return status == EBUSY ? robust_trylock_after_pauses(mutex) : status;
}
/* Like pthread_mutex_unlock, for a mutex that robust_trylock or the C library has locked. */
static inline int robust_unlock(pthread_mutex_t *mutex) {
    return free_lock_give(mutex) ? 0 : pthread_mutex_unlock(mutex);
}

#endif
