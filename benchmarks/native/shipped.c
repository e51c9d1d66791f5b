/* The floor of a put that is slower beside a slave: one thread copies records into a mapped file, and computes for as
 * long as a put without a slave does. Rounds go in turns to a file that nobody reads, and to one from which a second
 * thread sends the bytes, and another process writes them to a file of its own. Both processes sync twice a second, as
 * stores do. Nothing else is done: no dispatch, no check of a record, no interpreter. So what slows the first thread
 * here is the machine.
 *
 *     shipped FOLDER COUNT BYTES PUT_NS ROUNDS PACE
 *
 * PACE: records a second, in bursts of 100; 0: as fast as they go. A line for each pair of rounds of COUNT records,
 * nanoseconds without a slave and beside one: in all, on a processor, and ready for one that other threads have. The
 * first is without the thread's sleep between bursts. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 100, LOOK_NS = 1000000, SYNC_NS = 500000000, FRAME = 1 << 20, PIECE = 256 << 10 };

struct took {
    int64_t ns, ran_ns, ready_ns;
};

struct log {
    uint8_t *bytes;
    int64_t wrote;
    int fd;
};

static struct log unread, shipped;
static uint8_t piece[PIECE];
static int64_t count, bytes, pace, steps_of_put, sent;
static int link_fd;
static uint64_t computed;

static void must(int holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(1);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_ns(int64_t ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

static int opened(const char *folder, const char *name, int64_t length) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    must(fd >= 0 && posix_fallocate(fd, 0, length) == 0, path);
    return fd;
}

static void *sync_log(void *given) {
    for (;;) {
        sleep_ns(SYNC_NS);
        must(fdatasync(*(int *)given) == 0, "fdatasync");
    }
    return NULL;
}

static void start(void *(*run)(void *), void *given) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, run, given) == 0, "a thread");
}

static void receive(int port, int file) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = (in_port_t)port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    start(sync_log, &file);
    for (ssize_t found; (found = recv(fd, piece, PIECE, 0)) > 0;)
        must(write(file, piece, (size_t)found) == found, "write");
    _exit(0);
}

static void *send_log(void *unused) {
    (void)unused;
    for (off_t next = 0;; sleep_ns(LOOK_NS)) {
        for (int64_t end; next < (end = __atomic_load_n(&shipped.wrote, __ATOMIC_ACQUIRE));) {
            size_t size = (size_t)(end - next < FRAME ? end - next : FRAME);
            must(sendfile(link_fd, shipped.fd, &next, size) > 0, "sendfile");
            __atomic_store_n(&sent, next, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

static void compute(int64_t steps) {
    uint64_t value = computed;
    for (int64_t n = 0; n < steps; n++) value = value * 6364136223846793005u + 1442695040888963407u;
    __atomic_store_n(&computed, value, __ATOMIC_RELAXED);
}

static struct took now(void) {
    struct took t = {.ns = now_ns(CLOCK_MONOTONIC)};
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    must(file && fscanf(file, "%" SCNd64 "%" SCNd64, &t.ran_ns, &t.ready_ns) == 2, "schedstat");
    fclose(file);
    return t;
}

static void put(struct log *log) {
    compute(steps_of_put);
    memset(log->bytes + log->wrote, (int)log->wrote | 1, (size_t)bytes);
    __atomic_store_n(&log->wrote, log->wrote + bytes, __ATOMIC_RELEASE);
}

static struct took put_round(struct log *log) {
    struct took begun = now();
    int64_t due = begun.ns, slept = 0;
    for (int64_t n = 0; n < count; n++) {
        put(log);
        if (!pace || (n + 1) % BURST) continue;
        due += BURST * 1000000000LL / pace;
        int64_t left = due - now_ns(CLOCK_MONOTONIC), before = due - left;
        if (left > 0) sleep_ns(left);
        slept += now_ns(CLOCK_MONOTONIC) - before;
    }
    struct took t = now();
    t.ns -= begun.ns + slept, t.ran_ns -= begun.ran_ns, t.ready_ns -= begun.ready_ns;
    return t;
}

/* Chooses the steps so that a put takes `put_ns` of a processor. The first rounds have none. */
static void choose_steps(int64_t put_ns) {
    enum { TRIED = 10000000 };
    put_round(&unread);
    int64_t copied = put_round(&unread).ran_ns / count, begun = now_ns(CLOCK_THREAD_CPUTIME_ID);
    compute(TRIED);
    int64_t tried = now_ns(CLOCK_THREAD_CPUTIME_ID) - begun;
    if (put_ns > copied) steps_of_put = (put_ns - copied) * TRIED / tried;
}

/* The slave has all of the log. */
static void wait_for_slave(void) {
    for (int queued = 1; queued || __atomic_load_n(&sent, __ATOMIC_ACQUIRE) < shipped.wrote; sleep_ns(LOOK_NS))
        must(ioctl(link_fd, SIOCOUTQ, &queued) == 0, "ioctl");
}

static void print_pair(int turn) {
    struct took took[2];
    for (int n = 0; n < 2; n++) {
        int ships = (n + turn) % 2;
        took[ships] = put_round(ships ? &shipped : &unread);
        if (ships) wait_for_slave();
    }
    for (int ships = 0; ships < 2; ships++) {
        struct took *t = &took[ships];
        printf("%" PRId64 " %" PRId64 " %" PRId64 "%c", t->ns, t->ran_ns, t->ready_ns, ships ? '\n' : ' ');
    }
}

/* Its pages are in memory, as those ahead of a store's appends are. */
static void make(struct log *log, const char *folder, const char *name, int64_t length) {
    log->fd = opened(folder, name, length);
    log->bytes = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_SHARED, log->fd, 0);
    must(log->bytes != MAP_FAILED, "mmap");
    memset(log->bytes, 0, (size_t)length);
    start(sync_log, &log->fd);
}

int main(int words_count, char **words) {
    if (words_count != 7) return 2;
    count = atoll(words[2]), bytes = atoll(words[3]);
    int64_t rounds = atoll(words[5]), length = (rounds + 2) * count * bytes;
    struct sockaddr_in on = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof on;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&on, size) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&on, &size) == 0, "getsockname");
    int file = opened(words[1], "slave", length);
    if (fork() == 0) {
        close(listener);
        receive(on.sin_port, file);
    }
    link_fd = accept(listener, NULL, NULL);
    must(link_fd >= 0, "accept");
    make(&unread, words[1], "unread", length);
    make(&shipped, words[1], "shipped", length);
    start(send_log, NULL);
    choose_steps(atoll(words[4]));
    pace = atoll(words[6]);
    for (int turn = 0; turn < rounds; turn++) print_pair(turn);
    return 0;
}
