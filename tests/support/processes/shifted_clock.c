/* Loaded in front of the C library: the wall clock is off by as many ms as a shared file says, from one moment to the next.
   CYSTORE_CLOCK_FILE names the file, two numbers of 8 bytes in the machine's own order: by how much the wall clock is off, and how much
   more time has passed, by every clock that counts while the host sleeps, than really has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shifts;
static int (*next_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CYSTORE_CLOCK_FILE");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    next_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (fd < 0) return;
    void *mapped = mmap(NULL, 2 * sizeof *shifts, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) shifts = mapped;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int result = next_clock_gettime ? next_clock_gettime(id, at) : (int)syscall(SYS_clock_gettime, id, at);
    int wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    if (result == 0 && shifts != NULL && (wall || id == CLOCK_BOOTTIME)) {
        int64_t shift = shifts[1] + (wall ? shifts[0] : 0);
        int64_t ns = at->tv_nsec + shift % 1000 * 1000000;
        at->tv_sec += shift / 1000 + (ns >= 1000000000) - (ns < 0);
        at->tv_nsec = ns + (ns < 0 ? 1000000000 : 0) - (ns >= 1000000000 ? 1000000000 : 0);
    }
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
