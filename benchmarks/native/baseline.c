/* The floors that the store is held against: copying its records, their checksum alone, a lock, a call. Nothing else is done. */
#include <Python.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "checksum.h" /* the library's own: the crc32c package's kernel, chosen by CPU */
#include "free_lock.h"

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Copies `count` records one behind the other into `to`, taking them in turn from the `ring` records at `from`, which begin
   at offsets[0..ring] (the last one is the end). Gives nanoseconds, or -1 when they do not fit. */
int64_t copy_records(uint8_t *to, int64_t to_bytes, const uint8_t *from, const int64_t *offsets, int64_t ring, int64_t count) {
    int64_t at = 0;
    int64_t begin = now_ns();
    for (int64_t n = 0, r = 0; n < count; n++, r = r + 1 == ring ? 0 : r + 1) {
        int64_t size = offsets[r + 1] - offsets[r];
        if (size > to_bytes - at) {
            return -1;
        }
        memcpy(to + at, from + offsets[r], (size_t)size);
        at += size;
    }
    return now_ns() - begin;
}

/* Takes and gives back a free lock of the kind that the store's is, robust and shared by processes, as a put does. Gives nanoseconds. */
int64_t lock_and_unlock(int64_t count) {
    static pthread_mutex_t mutex;
    free_lock_compare();
    if (robust_init(&mutex)) {
        return -1;
    }
    int64_t begin = now_ns();
    for (int64_t n = 0; n < count; n++) {
        if (robust_trylock(&mutex)) {
            return -1;
        }
        robust_unlock(&mutex);
    }
    return now_ns() - begin;
}

/* What processes that append at once share at least: the lock, and the place where the next record begins. */
typedef struct shared_log {
    pthread_mutex_t mutex;
    __attribute__((aligned(64))) int64_t wrote;
} shared_log;

int64_t shared_log_make(shared_log *log) {
    log->wrote = 0;
    return robust_init(&log->mutex);
}

/* Copies `count` records of `size` bytes into `to`, each behind the last one of any process, under the store's lock. The place is taken
   from the beginning again where `to` ends. Gives nanoseconds, or -1. */
int64_t copy_together(shared_log *log, uint8_t *to, int64_t to_bytes, const uint8_t *from, int64_t size, int64_t count) {
    free_lock_compare();
    int64_t begin = now_ns();
    for (int64_t n = 0; n < count; n++) {
        int status = robust_trylock_spinning(&log->mutex);
        while (status == EBUSY || status == ETIMEDOUT) {
            status = robust_lock(&log->mutex, 250);
        }
        if (status) {
            return -1;
        }
        int64_t at = log->wrote;
        memcpy(to + at, from, (size_t)size);
        log->wrote = at + 2 * size > to_bytes ? 0 : at + size;
        robust_unlock(&log->mutex);
    }
    return now_ns() - begin;
}

/* Loads what a read of one message needs, `count` times: a run of bytes at a random place of each part of `from`, one part after the other.
   Part n has part_bytes[n] bytes, and the run run_bytes[n]. A place depends on the bytes before it, as in a chain from slot to entry to
   record. Gives nanoseconds of processor time. */
int64_t load_at_random(const uint8_t *from, const int64_t *part_bytes, const int64_t *run_bytes, int64_t parts, int64_t count) {
    struct timespec begin, end;
    uint64_t random = 1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (int64_t n = 0; n < count; n++) {
        const uint8_t *part = from;
        for (int64_t k = 0; k < parts; part += part_bytes[k++]) {
            random = random * 6364136223846793005ULL + 1442695040888963407ULL;
            const uint8_t *run = part + (uint64_t)(((unsigned __int128)random * (uint64_t)(part_bytes[k] - run_bytes[k])) >> 64);
            uint64_t sum = 0;
            for (int64_t at = 0; at < run_bytes[k]; at += 64) {
                sum += run[at];
            }
            random += sum + run[run_bytes[k] - 1];
        }
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec + (random == 0);
}

void choose_kernel(void) {
    crc32c_choose();
}

/* The CRC-32C of each of `count` pieces by itself. Gives nanoseconds. */
int64_t checksum_pieces(const uint8_t *from, const int64_t *offsets, int64_t count, uint32_t *sum) {
    int64_t begin = now_ns();
    uint32_t all = 0;
    for (int64_t n = 0; n < count; n++) {
        all ^= ~crc32c_kernel(~0u, from + offsets[n], (unsigned long)(offsets[n + 1] - offsets[n]));
    }
    *sum = all;
    return now_ns() - begin;
}

static PyObject *nothing(PyObject *self, PyObject *const *given, Py_ssize_t positional, PyObject *names) {
    Py_RETURN_NONE;
}

/* A function that takes any arguments, in the way that is the cheapest for keywords. */
PyMethodDef nothing_definition = {"nothing", (PyCFunction)(void *)nothing, METH_FASTCALL | METH_KEYWORDS, NULL};
