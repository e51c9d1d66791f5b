/* Run time of the `fuzz` build: counts which branches of the kernels an input takes. The compiler calls __sanitizer_cov_trace_pc at
   the start of every basic block (-fsanitize-coverage=trace-pc); the fuzzer asks what was new after each input. Not thread-safe. */
#include <stdint.h>
#include <string.h>

#define PLACES (1u << 16)

static uint8_t taken[PLACES]; /* how often each edge was taken by this input */
static uint8_t seen[PLACES];  /* counts ever seen of it, a bit for each power of two */
static uintptr_t before;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uintptr_t mixed = (here >> 2) * (uintptr_t)0x9E3779B97F4A7C15u >> 32;
    uint8_t *count = &taken[(mixed ^ before) & (PLACES - 1)];
    if (*count != 255) ++*count;
    before = mixed >> 1;
}

void coverage_begin(void) {
    memset(taken, 0, sizeof taken);
    before = 0;
}

/* 1 when this input took an edge for the first time, or one much more often than any before it. */
int coverage_is_new(void) {
    int found = 0;
    for (uint32_t at = 0; at < PLACES; ++at) {
        if (taken[at]) {
            uint8_t bit = (uint8_t)(1u << (31 - __builtin_clz(taken[at])));
            found |= !(seen[at] & bit);
            seen[at] |= bit;
        }
    }
    return found;
}

uint32_t coverage_edges(void) {
    uint32_t count = 0;
    for (uint32_t at = 0; at < PLACES; ++at) count += seen[at] != 0;
    return count;
}
