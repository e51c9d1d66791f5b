/* Lets the n-th system call fail: preloaded into a process, told by its environment at the time of the call.
 *
 *   CYSTORE_FAIL_UNDER  only calls for files below this folder count (msync, and threads that are started, always do)
 *   CYSTORE_FAIL_CALL   msync, fsync, fdatasync, ftruncate, fallocate, open, mmap, rename, pwrite, thread; or any
 *   CYSTORE_FAIL_AT     the number of the first call that fails, from 1 on
 *   CYSTORE_FAIL_TIMES  how many do
 *   CYSTORE_FAIL_ERRNO  with what
 *
 * A call that fails does nothing: what it should have synced is not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OPEN, MMAP, MSYNC, FSYNC, FDATASYNC, FTRUNCATE, FALLOCATE, RENAME, PWRITE, THREAD, CALLS };
static const char *const names[CALLS] = {"open", "mmap", "msync", "fsync", "fdatasync", "ftruncate", "fallocate", "rename", "pwrite", "thread"};
static long counts[CALLS + 1];
static long failures;
static char failed[512];

long cystore_calls(int call) { return __atomic_load_n(&counts[call], __ATOMIC_RELAXED); }
long cystore_failures(void) { return __atomic_load_n(&failures, __ATOMIC_RELAXED); }
const char *cystore_failed(void) { return failed; }
void cystore_count_anew(void) { memset(counts, 0, sizeof counts); failures = 0; failed[0] = 0; }

static int below(const char *path) {
    const char *folder = getenv("CYSTORE_FAIL_UNDER");
    return folder && path && !strncmp(path, folder, strlen(folder));
}

static int fd_below(int fd, char *path, size_t size) {
    char link[64];
    ssize_t length;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, size - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Whether a name in an open folder is below: the store opens and renames that way. */
static int below_at(int folder, const char *name) {
    char path[400];
    if (name && name[0] == '/') return below(name);
    return folder >= 0 && fd_below(folder, path, sizeof path);
}

/* Counts one call; true, and errno is set, when it is to fail. */
static int fails(int call, const char *path) {
    const char *which = getenv("CYSTORE_FAIL_CALL"), *at = getenv("CYSTORE_FAIL_AT");
    const char *times = getenv("CYSTORE_FAIL_TIMES"), *code = getenv("CYSTORE_FAIL_ERRNO");
    long mine = __atomic_add_fetch(&counts[call], 1, __ATOMIC_RELAXED);
    long any = __atomic_add_fetch(&counts[CALLS], 1, __ATOMIC_RELAXED);
    long n, first;
    if (!which || !at || !code) return 0;
    if (!strcmp(which, "any")) n = any;
    else if (!strcmp(which, names[call])) n = mine;
    else return 0;
    first = atol(at);
    if (n < first || n >= first + (times ? atol(times) : 1)) return 0;
    if (__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED) == 0) snprintf(failed, sizeof failed, "%s %s", names[call], path);
    errno = atoi(code);
    return 1;
}

static int fd_fails(int call, int fd) {
    char path[400];
    return fd >= 0 && fd_below(fd, path, sizeof path) && fails(call, path);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define WRAP_OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        if (below(path) && fails(OPEN, path)) return -1; \
        return real(path, flags, mode); \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        if (below_at(folder, path) && fails(OPEN, path)) return -1; \
        return real(folder, path, flags, mode); \
    }
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)

#define WRAP_MMAP(name) \
    void *name(void *address, size_t length, int protection, int flags, int fd, off_t offset) { \
        REAL(void *, #name, void *, size_t, int, int, int, off_t); \
        if (fd_fails(MMAP, fd)) return MAP_FAILED; \
        return real(address, length, protection, flags, fd, offset); \
    }
WRAP_MMAP(mmap)
WRAP_MMAP(mmap64)

int msync(void *address, size_t length, int flags) {
    REAL(int, "msync", void *, size_t, int);
    return fails(MSYNC, "") ? -1 : real(address, length, flags);
}

#define WRAP_FD(name, call) \
    int name(int fd) { \
        REAL(int, #name, int); \
        return fd_fails(call, fd) ? -1 : real(fd); \
    }
WRAP_FD(fsync, FSYNC)
WRAP_FD(fdatasync, FDATASYNC)

#define WRAP_FTRUNCATE(name) \
    int name(int fd, off_t length) { \
        REAL(int, #name, int, off_t); \
        return fd_fails(FTRUNCATE, fd) ? -1 : real(fd, length); \
    }
WRAP_FTRUNCATE(ftruncate)
WRAP_FTRUNCATE(ftruncate64)

#define WRAP_FALLOCATE(name) \
    int name(int fd, int mode, off_t offset, off_t length) { \
        REAL(int, #name, int, int, off_t, off_t); \
        return fd_fails(FALLOCATE, fd) ? -1 : real(fd, mode, offset, length); \
    }
WRAP_FALLOCATE(fallocate)
WRAP_FALLOCATE(fallocate64)

#define WRAP_PWRITE(name) \
    ssize_t name(int fd, const void *bytes, size_t count, off_t offset) { \
        REAL(ssize_t, #name, int, const void *, size_t, off_t); \
        return fd_fails(PWRITE, fd) ? -1 : real(fd, bytes, count, offset); \
    }
WRAP_PWRITE(pwrite)
WRAP_PWRITE(pwrite64)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return below(to) && fails(RENAME, to) ? -1 : real(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return below_at(to_folder, to) && fails(RENAME, to) ? -1 : real(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    return below_at(to_folder, to) && fails(RENAME, to) ? -1 : real(from_folder, from, to_folder, to, flags);
}

long syscall(long number, ...) {
    REAL(long, "syscall", long, ...);
    long arguments[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) arguments[i] = va_arg(rest, long);
    va_end(rest);
    if (number == 437 /* openat2 */ && below_at((int)arguments[0], (const char *)arguments[1]) && fails(OPEN, (const char *)arguments[1]))
        return -1;
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    int saved = errno, failed = fails(THREAD, ""), code = errno;
    errno = saved;
    return failed ? code : real(thread, attributes, run, argument);
}
