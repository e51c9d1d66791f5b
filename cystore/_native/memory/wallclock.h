/* The store's clock, in ms since the epoch. It follows the wall clock as long as that keeps step with CLOCK_BOOTTIME,
   which cannot be set.

   All attached processes share the clock's state (control block, "clock_..."). A jump takes the wall clock away from
   CLOCK_BOOTTIME by more than clock_jump_ms. The store's clock then continues with CLOCK_BOOTTIME. It believes the jump
   when several looks have found it over clock_jump_ms (a jump back: over at most CLOCK_BACK_MS). The looks need no
   lock: each process stores the value that any other process would store at this moment. */
#ifndef CYSTORE_WALLCLOCK_H
#define CYSTORE_WALLCLOCK_H

#include <stdint.h>
#include <time.h>

#include "layout.h"

#define CLOCK_LOOKS 3              /* looks that must find a jump */
#define CLOCK_LOOK_APART_MS 1000   /* looks closer together count as one */
#define CLOCK_BACK_MS 30000        /* most jumps back correct a wrong clock, so they are believed soon */

static inline int64_t clock_read_ms(clockid_t which) {
    struct timespec now;
    clock_gettime(which, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int64_t clock_word(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void set_clock_word(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static inline int clock_apart(int64_t a, int64_t b, int64_t limit) {
    int64_t distance;
    if (__builtin_sub_overflow(a, b, &distance)) return 1;
    return distance > limit || distance < -limit;
}

/* From now on the store's clock follows the wall clock. */
static inline void store_clock_believe(control_block *block, int64_t wall, int64_t boot) {
    set_clock_word(&block->clock_offset_ms, wall - boot);
    set_clock_word(&block->clock_seen_ms, 0);
    set_clock_word(&block->clock_stood_ms, boot);
    set_clock_word(&block->clock_known_ms, 0);
}

/* The values of a new block, until a process sets others. */
static inline void store_clock_first(control_block *block) {
    block->clock_jump_ms = 300000;
    store_clock_believe(block, clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME));
}

/* Counts a look at a wall clock that has jumped. Returns the time of the store. */
static inline int64_t store_clock_doubt(control_block *block, int64_t wall, int64_t boot) {
    int64_t jumped = clock_word(&block->clock_seen_ms), last_look = clock_word(&block->clock_look_ms);
    int64_t shift = wall - boot, offset = clock_word(&block->clock_offset_ms), required_ms = block->clock_jump_ms;
    if (jumped == 0 || clock_apart(shift, jumped, block->clock_jump_ms)) {
        set_clock_word(&block->clock_seen_since_ms, boot);
        set_clock_word(&block->clock_look_ms, boot);
        __atomic_store_n(&block->clock_looks, 1, __ATOMIC_RELEASE);
        if (__atomic_compare_exchange_n(&block->clock_seen_ms, &jumped, shift, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            __atomic_add_fetch(&block->clock_jumps, 1, __ATOMIC_SEQ_CST);
        return boot + offset;
    }
    if (boot - last_look >= CLOCK_LOOK_APART_MS
        && __atomic_compare_exchange_n(&block->clock_look_ms, &last_look, boot, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        __atomic_add_fetch(&block->clock_looks, 1, __ATOMIC_SEQ_CST);
    if (shift < offset && required_ms > CLOCK_BACK_MS) required_ms = CLOCK_BACK_MS;
    if (boot - clock_word(&block->clock_seen_since_ms) < required_ms ||
        __atomic_load_n(&block->clock_looks, __ATOMIC_ACQUIRE) < CLOCK_LOOKS)
        return boot + offset;
    store_clock_believe(block, wall, boot);
    return wall;
}

/* The time of the store. With `looks` the call counts as a look and may write to the block; else it only reads. */
static inline int64_t store_clock_at(control_block *block, int64_t wall, int64_t boot, int looks) {
    int64_t offset = clock_word(&block->clock_offset_ms);
    if (clock_apart(wall - boot, offset, block->clock_jump_ms))
        return looks ? store_clock_doubt(block, wall, boot) : boot + offset;
    if (looks && (clock_apart(wall - boot, offset, 1) || clock_word(&block->clock_seen_ms) != 0)) {
        set_clock_word(&block->clock_offset_ms, wall - boot);
        set_clock_word(&block->clock_seen_ms, 0);
    }
    return wall;
}

/* The time for decisions to delete. If the clock began without a witness (store_clock.pyx), a wall clock far ahead of
   the last record does not count in full before it has stood for clock_jump_ms. */
static inline int64_t store_clock_expiry(const control_block *block, int64_t now, int64_t boot) {
    int64_t known = clock_word(&block->clock_known_ms), stood = boot - clock_word(&block->clock_stood_ms);
    int64_t limit = known + stood + block->clock_jump_ms;
    return known == 0 || stood >= block->clock_jump_ms || now < limit ? now : limit;
}

/* The store's time for the appends of one process. It comes from the time-stamp counter; the process reads the system's
   clock once a millisecond. */
typedef struct wall_clock {
    uint64_t ticks;      /* counter at the last look at the system's clock */
    uint64_t valid_for;  /* ticks from that look to the end of its millisecond */
    int64_t ms;
    uint64_t first_ticks; /* calibration: counter and monotonic time of the first look */
    int64_t first_ns;
    double ticks_per_ns; /* 0 until calibrated; stays 0 without a steady counter */
    uint64_t ticks_per_ms;
    uint64_t asked;      /* counter at the last call of wall_clock_at */
    int64_t asked_ms;    /* CLOCK_BOOTTIME then, for a CPU without a steady counter */
    int64_t tick_ns;     /* the coarse clock at the last call of wall_clock_took_ms */
} wall_clock;

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
static inline int counter_is_steady(void) {
    unsigned a, b, c, d = 0;
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8));
}
static inline uint64_t counter_now(void) { return __rdtsc(); }
#else
static inline int counter_is_steady(void) { return 0; }
static inline uint64_t counter_now(void) { return 0; }
#endif

static inline int64_t wall_clock_look(wall_clock *clock, control_block *block, uint64_t ticks) {
    struct timespec now, steady;
    int64_t boot = clock_read_ms(CLOCK_BOOTTIME);
    clock_gettime(CLOCK_REALTIME, &now);
    clock->ms = store_clock_at(block, (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000, boot, 1);
    clock->asked_ms = boot;
    clock->ticks = ticks;
    clock->valid_for = 0;
    if (clock->ticks_per_ns == 0) {
        clock_gettime(CLOCK_MONOTONIC_RAW, &steady);
        int64_t ns = (int64_t)steady.tv_sec * 1000000000 + steady.tv_nsec;
        if (clock->first_ns == 0) {
            clock->first_ns = counter_is_steady() ? ns : INT64_MAX;
            clock->first_ticks = ticks;
        } else if (ns - clock->first_ns > 20000000 && clock->first_ns != INT64_MAX) {
            clock->ticks_per_ns = (double)(ticks - clock->first_ticks) / (double)(ns - clock->first_ns);
            clock->ticks_per_ms = (uint64_t)(clock->ticks_per_ns * 1e6);
        }
    }
    if (clock->ticks_per_ns > 0) clock->valid_for = (uint64_t)((1000000 - now.tv_nsec % 1000000) * clock->ticks_per_ns);
    return clock->ms;
}

/* The store's time at a look at the counter. If the counter went back, or another thread looked at the system's clock
   after it, the unsigned difference is huge, and the system's clock is read again. */
static inline int64_t wall_clock_at(wall_clock *clock, control_block *block, uint64_t ticks) {
    clock->asked = ticks;
    if (ticks - clock->ticks < clock->valid_for) return clock->ms;
    return wall_clock_look(clock, block, ticks);
}

/* Whole ms since the last look of wall_clock_at; 0 while the system's coarse clock has not ticked since the last call
   of this function. So a time below that clock's tick, mostly 4 ms, may be 0. A look at the counter takes three times
   as long: 21 ns in a virtual machine, of a put of 125. */
static inline int64_t wall_clock_took_ms(wall_clock *clock) {
    struct timespec coarse;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &coarse);
    int64_t tick_ns = (int64_t)coarse.tv_sec * 1000000000 + coarse.tv_nsec;
    if (tick_ns == clock->tick_ns) return 0;
    clock->tick_ns = tick_ns;
    if (clock->ticks_per_ms > 0) {
        uint64_t ticks = counter_now() - clock->asked;
        return ticks < clock->ticks_per_ms || (int64_t)ticks < 0 ? 0 : (int64_t)(ticks / clock->ticks_per_ms);
    }
    return clock_read_ms(CLOCK_BOOTTIME) - clock->asked_ms;
}

#endif
