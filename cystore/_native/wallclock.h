/* The wall clock in ms, read through the time-stamp counter: the system's clock is asked once for each millisecond. */
#ifndef CYSTORE_WALLCLOCK_H
#define CYSTORE_WALLCLOCK_H

#include <stdint.h>
#include <time.h>

typedef struct wall_clock {
    uint64_t ticks;      /* counter at the last look at the system's clock */
    uint64_t valid_for;  /* ticks until the millisecond that was current then is over */
    int64_t ms;
    uint64_t first_ticks; /* calibration: counter and monotonic time of the first look */
    int64_t first_ns;
    double ticks_per_ns; /* 0 until calibrated, and for ever without a steady counter */
    uint64_t ticks_per_ms;
    uint64_t asked;      /* counter when the time was asked for last */
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

static inline int64_t wall_clock_look(wall_clock *clock, uint64_t ticks) {
    struct timespec now, steady;
    clock_gettime(CLOCK_REALTIME, &now);
    clock->ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
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

/* A counter that went back makes a huge unsigned difference: the system's clock is asked again. */
static inline int64_t wall_clock_ms(wall_clock *clock) {
    uint64_t ticks = counter_now();
    clock->asked = ticks;
    if (ticks - clock->ticks < clock->valid_for) return clock->ms;
    return wall_clock_look(clock, ticks);
}

/* Whole ms since the time was asked for. Without a steady counter the wall clock tells: 0 when it was set back. */
static inline int64_t wall_clock_took_ms(wall_clock *clock) {
    if (clock->ticks_per_ms > 0) {
        uint64_t ticks = counter_now() - clock->asked;
        return ticks < clock->ticks_per_ms || (int64_t)ticks < 0 ? 0 : (int64_t)(ticks / clock->ticks_per_ms);
    }
    int64_t before = clock->ms, now = wall_clock_look(clock, counter_now());
    return now > before ? now - before : 0;
}

#endif
