/* The floors that the store is held against: copying its records, their checksum alone, a lock, a call. Nothing else is done. */
#include <Python.h>
#include <pthread.h>
#include <sched.h>
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

/* What processes that append at once share: a lock, and the place where the next record begins. Each lock has lines of its own, and has the
   place in its own line where it can. The block and the queue are those of a store: an append writes to two lines of the block. */
typedef struct shared_log {
    control_block block;
    __attribute__((aligned(64))) queue_entry queue;
    __attribute__((aligned(64))) uint32_t word; /* 1: taken */
    int64_t word_wrote;
    __attribute__((aligned(64))) uint32_t next_ticket;
    __attribute__((aligned(64))) uint32_t serving;
    int64_t ticket_wrote;
    __attribute__((aligned(64))) int64_t reserved;
    __attribute__((aligned(64))) int64_t published;
} shared_log;

/* Ways to agree on the place of a record. */
enum { STORE_LOCK, IMPATIENT, PUT_LINES, ONE_WORD, TICKETS, NO_LOCK };

/* Like robust_trylock_spinning, but looks at once, and then more and more rarely. */
static inline int trylock_impatiently(pthread_mutex_t *mutex) {
    int status = robust_trylock(mutex);
    for (int look = 0; status == EBUSY && look < 10; look++) {
        for (int pause = 1 << look; pause > 0; pause--) {
            CPU_PAUSE();
        }
        if (lock_looks_free(mutex)) {
            status = robust_trylock(mutex);
        }
    }
    return status;
}

int64_t shared_log_bytes(void) {
    return sizeof(shared_log);
}

int64_t shared_log_make(shared_log *log) {
    memset(log, 0, sizeof *log);
    return robust_init(&log->block.append_lock.mutex);
}

static inline void pause_at(int *looks) {
    CPU_PAUSE();
    if (++*looks % 200 == 0) {
        sched_yield(); /* the process that everybody waits for may have no processor */
    }
}

/* Two processes change a word in turn: `me` is 0 or 1. Each change moves the word's cache line. */
int64_t pass_line(shared_log *log, int64_t me, int64_t count) {
    int looks = 0;
    int64_t begin = now_ns();
    for (int64_t n = 0; n < count; n++) {
        while ((__atomic_load_n(&log->word, __ATOMIC_ACQUIRE) & 1) != me) {
            if (++looks % 1000 == 0) {
                sched_yield();
            }
        }
        __atomic_add_fetch(&log->word, 1, __ATOMIC_RELEASE);
    }
    return now_ns() - begin;
}

static inline int64_t behind(int64_t at, int64_t size, int64_t to_bytes) {
    return at + 2 * size > to_bytes ? 0 : at + size;
}

/* `steps` of a calculation that nobody else needs. */
static uint64_t calculate(uint64_t x, int64_t steps) {
    for (int64_t n = 0; n < steps; n++) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    }
    return x;
}

/* Nanoseconds of that many steps. */
int64_t time_steps(int64_t steps) {
    int64_t begin = now_ns();
    volatile uint64_t result = calculate((uint64_t)begin, steps);
    (void)result;
    return now_ns() - begin;
}

/* Copies `count` records of `size` bytes into `to`, each behind the last one of any process. Between two records it calculates so many
   `steps`, as a put does work outside the lock. The place is taken from the beginning again where `to` ends. With NO_LOCK a process reserves
   its place with one instruction, copies beside the others, and publishes the record when all before it are published: nothing is safe from
   a kill. Gives nanoseconds, or -1. */
int64_t copy_together(shared_log *log, uint8_t *to, int64_t to_bytes, uint8_t *from, int64_t size, int64_t count, int64_t way,
                      int64_t steps) {
    uint64_t x = (uint64_t)(uintptr_t)&way;
    control_block *block = &log->block;
    pthread_mutex_t *mutex = &block->append_lock.mutex;
    free_lock_compare();
    int64_t begin = now_ns();
    for (int64_t n = 0; n < count; n++) {
        int looks = 0, backoff = 1;
        x = calculate(x, steps);
        from[0] = (uint8_t)x;
        if (way <= PUT_LINES) {
            if (way == PUT_LINES) {
                prefetch_for_write(&block->intent_from);
                prefetch_for_write(&log->queue);
            }
            int status = way == IMPATIENT ? trylock_impatiently(mutex) : robust_trylock_spinning(mutex);
            while (status == EBUSY || status == ETIMEDOUT) {
                status = robust_lock(mutex, 250);
            }
            if (status) {
                return -1;
            }
            int64_t at = block->wrote;
            if (way == PUT_LINES) { /* the words that an append writes, in its order */
                block->intent_from = at;
                block->intent_to = at + size;
                store_u32(&block->intent_active, 1);
                log->queue.claimed++;
            }
            memcpy(to + at, from, (size_t)size);
            store_i64(&block->wrote, behind(at, size, to_bytes));
            if (way == PUT_LINES) {
                block->last_record = at;
                log->queue.next++;
                log->queue.put_bytes += (uint64_t)size;
                store_u32(&block->intent_active, 0);
                block->append_seq++;
                block->put_count++;
                block->put_bytes += (uint64_t)size;
            }
            robust_unlock(mutex);
        } else if (way == ONE_WORD) {
            while (__atomic_exchange_n(&log->word, 1, __ATOMIC_ACQUIRE)) {
                do {
                    for (int pause = 0; pause < backoff; pause++) {
                        pause_at(&looks);
                    }
                    backoff = backoff < 512 ? 2 * backoff : backoff;
                } while (__atomic_load_n(&log->word, __ATOMIC_RELAXED));
            }
            memcpy(to + log->word_wrote, from, (size_t)size);
            log->word_wrote = behind(log->word_wrote, size, to_bytes);
            __atomic_store_n(&log->word, 0, __ATOMIC_RELEASE);
        } else if (way == TICKETS) {
            uint32_t ticket = __atomic_fetch_add(&log->next_ticket, 1, __ATOMIC_RELAXED);
            while (__atomic_load_n(&log->serving, __ATOMIC_ACQUIRE) != ticket) {
                pause_at(&looks);
            }
            memcpy(to + log->ticket_wrote, from, (size_t)size);
            log->ticket_wrote = behind(log->ticket_wrote, size, to_bytes);
            __atomic_store_n(&log->serving, ticket + 1, __ATOMIC_RELEASE);
        } else {
            int64_t at = __atomic_fetch_add(&log->reserved, size, __ATOMIC_RELAXED);
            memcpy(to + at % (to_bytes - size), from, (size_t)size);
            while (__atomic_load_n(&log->published, __ATOMIC_ACQUIRE) != at) {
                pause_at(&looks);
            }
            __atomic_store_n(&log->published, at + size, __ATOMIC_RELEASE);
        }
    }
    return now_ns() - begin + (x == 42);
}

/* Loads what a read needs, `count` times: runs of bytes at random places of each part of `from`, one part after the other. Part n has
   part_bytes[n] bytes, from which runs[n] runs of run_bytes[n] bytes are loaded. The places in a part depend on the bytes of the part
   before it, as in a chain from slot to entry to record, and not on each other. Gives nanoseconds of processor time. */
int64_t load_at_random(const uint8_t *from, const int64_t *part_bytes, const int64_t *run_bytes, const int64_t *runs, int64_t parts,
                       int64_t count) {
    struct timespec begin, end;
    uint64_t random = 1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (int64_t n = 0; n < count; n++) {
        const uint8_t *part = from;
        for (int64_t k = 0; k < parts; part += part_bytes[k++]) {
            uint64_t sum = 0;
            for (int64_t r = 0; r < runs[k]; r++) {
                random = random * 6364136223846793005ULL + 1442695040888963407ULL;
                const uint8_t *run = part + (uint64_t)(((unsigned __int128)random * (uint64_t)(part_bytes[k] - run_bytes[k])) >> 64);
                for (int64_t at = 0; at < run_bytes[k]; at += 64) {
                    sum += run[at];
                }
                sum += run[run_bytes[k] - 1];
            }
            random += sum;
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

/* What a store's index files and records are, for bare lookups. `indexes` begin with the newest. */
struct lookup_files {
    const uint8_t *const *indexes;
    int64_t index_count, slots_at, slots, entries_at;
    const uint8_t *log;
    int64_t record_lines;
};

enum { ENTRY_BYTES = 20, LINE = 64 };

static uint64_t big_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return __builtin_bswap64(value) >> (64 - 8 * bytes);
}

static const uint8_t *fetched(const uint8_t *at) {
    __builtin_prefetch(at);
    return at;
}

/* Only loads what the lookups of these key hashes need: a slot and a whole chain in each index file, and the lines of the newest
   record with the hash. A group of lookups takes turns. Each step prefetches what the next step of that lookup reads, so these
   loads overlap. Gives nanoseconds a lookup, of wall time; -1 if a hash is in no chain. */
enum { TURNS = 128 };
double look_up(const struct lookup_files *files, const int32_t *hashes, int64_t count) {
    struct timespec begin, end;
    const uint8_t *at[TURNS], *record[TURNS];
    int64_t missed = 0;
    uint64_t all = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int64_t done = 0; done < count; done += TURNS) {
        int turns = count - done < TURNS ? (int)(count - done) : TURNS;
        memset(record, 0, sizeof record);
        for (int64_t file = 0; file < files->index_count; file++) {
            const uint8_t *index = files->indexes[file], *entries = index + files->entries_at;
            int walking[TURNS], left = 0;
            for (int n = 0; n < turns; n++) {
                at[n] = fetched(index + files->slots_at + 4 * ((uint32_t)hashes[done + n] % (uint32_t)files->slots));
            }
            for (int n = 0; n < turns; n++) {
                uint64_t newest = big_endian(at[n], 4);
                at[n] = fetched(entries + ENTRY_BYTES * newest);
                walking[left] = n;
                left += newest != 0;
            }
            for (int steps = left; steps; steps = left) {
                left = 0;
                for (int i = 0; i < steps; i++) {
                    int n = walking[i];
                    const uint8_t *entry = at[n], *found = files->log + big_endian(entry + 4, 8);
                    uint64_t previous = big_endian(entry + 16, 4);
                    record[n] = !record[n] && big_endian(entry, 4) == (uint32_t)hashes[done + n] ? found : record[n];
                    at[n] = fetched(entries + ENTRY_BYTES * previous);
                    fetched(at[n] + ENTRY_BYTES - 1);
                    walking[left] = n;
                    left += previous != 0;
                }
            }
        }
        for (int n = 0; n < turns; n++) {
            missed += !record[n];
            record[n] = record[n] ? record[n] : files->log;
            for (int64_t line = 0; line < files->record_lines; line++) {
                fetched(record[n] + LINE * line);
            }
        }
        for (int n = 0; n < turns; n++) {
            for (int64_t line = 0; line < files->record_lines; line++) {
                all += record[n][LINE * line];
            }
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec) + (all == 0);
    return missed ? -1 : ns / (double)count;
}
