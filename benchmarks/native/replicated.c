/* The floor of replicated puts: writers that append records to a mapped file and wait for a sync of it and for another
 * process, which receives the bytes over loopback, keeps them in a file of its own, and answers. Nothing else is done:
 * no format, no checksum, no queue, no interpreter. The first writer that waits does the work for all.
 *
 *     replicated FOLDER WRITERS COUNT BYTES SYNCS
 *
 * Each round, WRITERS threads put COUNT records of BYTES in all. With SYNCS 1 the other process syncs its file before it
 * answers. Prints the nanoseconds of the median round. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 4, PAGE = 4096, GATHER_PAUSE_NS = 100000 };

static uint8_t *log_bytes;
static int64_t wrote, done, bytes, puts_of_writer;
static uint32_t done_word;
static int waiting, writers, link_fd;
static pthread_mutex_t append = PTHREAD_MUTEX_INITIALIZER, leading = PTHREAD_MUTEX_INITIALIZER;

static void must(int holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t load(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static void move(int fd, uint8_t *at, int64_t count, int receives) {
    while (count > 0) {
        ssize_t moved = receives ? recv(fd, at, (size_t)count, 0) : send(fd, at, (size_t)count, MSG_NOSIGNAL);
        must(moved > 0, "the connection");
        at += moved;
        count -= moved;
    }
}

/* The blocks of the file are written once, as the store does ahead of its appends: else each sync writes the file
 * system's metadata, too. */
static uint8_t *mapped(const char *folder, const char *name, int64_t length) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    must(fd >= 0 && posix_fallocate(fd, 0, length) == 0, path);
    uint8_t *at = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(at != MAP_FAILED, "mmap");
    memset(at, 0, (size_t)length);
    must(msync(at, (size_t)length, MS_SYNC) == 0, "msync");
    return at;
}

static void sync_range(uint8_t *at, int64_t begin, int64_t end) {
    begin -= begin % PAGE;
    must(msync(at + begin, (size_t)(end - begin), MS_SYNC) == 0, "msync");
}

/* Makes the log durable here and there, up to its present end. */
static void lead(void) {
    int64_t last_ns = now_ns();
    for (int seen = 0, now; (now = __atomic_load_n(&waiting, __ATOMIC_ACQUIRE)) < writers;) {
        if (now != seen) last_ns = now_ns(), seen = now;
        if (now_ns() - last_ns > GATHER_PAUSE_NS) break;
        sched_yield();
    }
    int64_t begin = done, end = load(&wrote), head[2] = {begin, end - begin}, answer;
    move(link_fd, (uint8_t *)head, sizeof head, 0);
    move(link_fd, log_bytes + begin, end - begin, 0);
    sync_range(log_bytes, begin, end);
    move(link_fd, (uint8_t *)&answer, sizeof answer, 1);
    must(answer == end, "the answer");
    __atomic_store_n(&waiting, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&done, end, __ATOMIC_RELEASE);
}

static void *write_records(void *unused) {
    (void)unused;
    for (int64_t n = 0; n < puts_of_writer; n++) {
        pthread_mutex_lock(&append);
        int64_t end = wrote + bytes;
        memset(log_bytes + wrote, (int)n, (size_t)bytes);
        __atomic_store_n(&wrote, end, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&append);
        __atomic_add_fetch(&waiting, 1, __ATOMIC_ACQ_REL);
        for (;;) {
            uint32_t seen = __atomic_load_n(&done_word, __ATOMIC_ACQUIRE);
            if (load(&done) >= end) break;
            if (pthread_mutex_trylock(&leading) == 0) {
                if (load(&done) < end) lead();
                pthread_mutex_unlock(&leading);
                __atomic_add_fetch(&done_word, 1, __ATOMIC_ACQ_REL);
                syscall(SYS_futex, &done_word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
            } else {
                syscall(SYS_futex, &done_word, FUTEX_WAIT, seen, NULL, NULL, 0);
            }
        }
    }
    return NULL;
}

static void answer_records(const char *folder, int64_t length, int port, int syncs) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = (in_port_t)port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    uint8_t *copy = mapped(folder, "slave", length);
    must(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int64_t head[2];;) {
        ssize_t first = recv(fd, head, 1, MSG_PEEK);
        if (first <= 0) _exit(0);
        move(fd, (uint8_t *)head, sizeof head, 1);
        move(fd, copy + head[0], head[1], 1);
        int64_t end = head[0] + head[1];
        if (syncs) sync_range(copy, head[0], end);
        move(fd, (uint8_t *)&end, sizeof end, 0);
    }
}

static int by_value(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

int main(int count, char **words) {
    if (count != 6) return 2;
    writers = atoi(words[2]), bytes = atoll(words[4]), puts_of_writer = atoll(words[3]) / writers;
    int64_t length = ROUNDS * puts_of_writer * writers * bytes + PAGE, took[ROUNDS];
    struct sockaddr_in on = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof on;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    must(bind(listener, (struct sockaddr *)&on, size) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&on, &size) == 0, "getsockname");
    if (fork() == 0) {
        close(listener);
        answer_records(words[1], length, on.sin_port, atoi(words[5]));
    }
    log_bytes = mapped(words[1], "master", length);
    link_fd = accept(listener, NULL, NULL);
    must(link_fd >= 0, "accept");
    setsockopt(link_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pthread_t *threads = calloc((size_t)writers, sizeof *threads);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t begun = now_ns();
        for (int n = 0; n < writers; n++) must(!pthread_create(&threads[n], NULL, write_records, NULL), "a thread");
        for (int n = 0; n < writers; n++) pthread_join(threads[n], NULL);
        took[round] = now_ns() - begun;
    }
    qsort(took + 1, ROUNDS - 1, sizeof *took, by_value); /* the first round warms up */
    printf("%lld\n", (long long)took[ROUNDS / 2]);
    free(threads);
    return 0;
}
