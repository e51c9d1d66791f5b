/* The floor of a put that is slower beside a slave: one thread copies records into a mapped file, and computes for as
 * long as a put without a slave does. Beside a slave a second thread sends the bytes from the file, and another process
 * writes them to a file of its own. Both processes sync twice a second, as stores do. Nothing else is done: no dispatch,
 * no check of a record, no interpreter. So what slows the first thread here is the machine.
 *
 *     shipped FOLDER COUNT BYTES PUT_NS
 *
 * Prints a line for the median round of COUNT records without a slave, and one for that beside a slave: nanoseconds in
 * all, on a processor, and ready for one that other threads have. */
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

enum { ROUNDS = 5, LOOK_NS = 1000000, SYNC_NS = 500000000, FRAME = 1 << 20, PIECE = 256 << 10 };

struct took {
    int64_t ns, ran_ns, ready_ns;
};

static uint8_t *log_bytes, piece[PIECE];
static int64_t count, bytes, steps_of_put, wrote, sent;
static int log_fd, link_fd;
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
        for (int64_t end; next < (end = __atomic_load_n(&wrote, __ATOMIC_ACQUIRE));) {
            size_t size = (size_t)(end - next < FRAME ? end - next : FRAME);
            must(sendfile(link_fd, log_fd, &next, size) > 0, "sendfile");
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

static struct took put_round(void) {
    struct took begun = now();
    for (int64_t n = 0; n < count; n++) {
        compute(steps_of_put);
        memset(log_bytes + wrote, (int)n | 1, (size_t)bytes);
        __atomic_store_n(&wrote, wrote + bytes, __ATOMIC_RELEASE);
    }
    struct took t = now();
    t.ns -= begun.ns, t.ran_ns -= begun.ran_ns, t.ready_ns -= begun.ready_ns;
    return t;
}

/* Chooses the steps so that a put takes `put_ns` of a processor. The first rounds have none. */
static void choose_steps(int64_t put_ns) {
    enum { TRIED = 10000000 };
    put_round();
    int64_t copied = put_round().ran_ns / count, begun = now_ns(CLOCK_THREAD_CPUTIME_ID);
    compute(TRIED);
    int64_t tried = now_ns(CLOCK_THREAD_CPUTIME_ID) - begun;
    if (put_ns > copied) steps_of_put = (put_ns - copied) * TRIED / tried;
}

static int by_ns(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* The slave has all of the log. */
static void wait_for_slave(void) {
    for (int unread = 1; unread || __atomic_load_n(&sent, __ATOMIC_ACQUIRE) < wrote; sleep_ns(LOOK_NS))
        must(ioctl(link_fd, SIOCOUTQ, &unread) == 0, "ioctl");
}

static void print_median(int ships) {
    struct took took[ROUNDS], *t = &took[ROUNDS / 2];
    for (int round = 0; round < ROUNDS; round++) {
        took[round] = put_round();
        if (ships) wait_for_slave();
    }
    qsort(took, ROUNDS, sizeof *took, by_ns);
    printf("%" PRId64 " %" PRId64 " %" PRId64 "\n", t->ns, t->ran_ns, t->ready_ns);
    fflush(stdout);
}

int main(int words_count, char **words) {
    if (words_count != 5) return 2;
    count = atoll(words[2]), bytes = atoll(words[3]);
    int64_t length = 2 * (ROUNDS + 1) * count * bytes;
    struct sockaddr_in on = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof on;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&on, size) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&on, &size) == 0, "getsockname");
    log_fd = opened(words[1], "master", length);
    log_bytes = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_SHARED, log_fd, 0);
    must(log_bytes != MAP_FAILED, "mmap");
    memset(log_bytes, 0, (size_t)length); /* its pages are in memory, as those ahead of a store's appends are */
    int file = opened(words[1], "slave", length);
    start(sync_log, &log_fd);
    choose_steps(atoll(words[4]));
    print_median(0);
    if (fork() == 0) {
        close(listener);
        receive(on.sin_port, file);
    }
    link_fd = accept(listener, NULL, NULL);
    must(link_fd >= 0, "accept");
    start(send_log, NULL);
    wait_for_slave();
    print_median(1);
    return 0;
}
