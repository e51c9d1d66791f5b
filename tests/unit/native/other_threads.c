/* For test_other_threads.py: holds a thread up in a slow call or a page fault until another Python thread has run.

   `arm(CALLS)` makes every msync, fsync, fdatasync, munmap of at least LONG_BYTES and madvise of this process ask first;
   `arm(WAKES)` each wake of sleepers; `guard` every page of a range at its next access. Whoever asks writes a byte to a
   pipe and waits until a Python thread answers. If none does, the caller holds the interpreter's lock: that is counted,
   and nobody waits again. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAIT_MS 10000
#define LONG_BYTES (1 << 20)
#define CALLS 1
#define WAKES 2

static int ask = -1, answer = -1, armed, asked, stood_still, woken;
static uintptr_t guarded, guarded_end;
static int protection;

static void wait_for_another(void) {
    char byte = 0;
    struct pollfd answered = {answer, POLLIN, 0};
    asked++;
    if (stood_still) return;
    if (write(ask, &byte, 1) != 1 || poll(&answered, 1, WAIT_MS) != 1 || read(answer, &byte, 1) != 1) stood_still++;
}

static void fault(int number, siginfo_t *info, void *context) {
    int kept = errno;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)info->si_addr / page * page;
    (void)context;
    if (at < guarded || at >= guarded_end) {
        signal(number, SIG_DFL);
        return;
    }
    wait_for_another();
    mprotect((void *)at, page, protection);
    errno = kept;
}

void open_pipes(int to_ask, int to_answer) {
    struct sigaction action = {0};
    ask = to_ask;
    answer = to_answer;
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
}

void arm(int on) { armed = on; }
int times_asked(void) { return asked; }
int times_stood_still(void) { return stood_still; }
int times_woken(void) { return woken; }

int guard(uintptr_t begin, uintptr_t end, int writable) {
    guarded = begin;
    guarded_end = end;
    protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    return mprotect((void *)begin, end - begin, PROT_NONE);
}

int unguard(void) {
    uintptr_t begin = guarded, end = guarded_end;
    guarded = guarded_end = 0;
    return end > begin ? mprotect((void *)begin, end - begin, protection) : 0;
}

#define ASKING(result, name, parameters, arguments, when)                   \
    result name parameters {                                                \
        static result (*real) parameters;                                   \
        if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);    \
        if (armed == CALLS && (when)) wait_for_another();                            \
        return real arguments;                                              \
    }

ASKING(int, msync, (void *at, size_t length, int flags), (at, length, flags), 1)
ASKING(int, fsync, (int fd), (fd), 1)
ASKING(int, fdatasync, (int fd), (fd), 1)
ASKING(int, munmap, (void *at, size_t length), (at, length), length >= LONG_BYTES)
ASKING(int, madvise, (void *at, size_t length, int advice), (at, length, advice), advice == 23)

/* Wakes of all sleepers are cystore's: the interpreter and the C library do not call this function for theirs. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) arguments[i] = va_arg(list, long);
    va_end(list);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (armed == WAKES && number == SYS_futex && (arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAKE &&
        arguments[2] == INT_MAX) {
        wait_for_another();
        woken++;
    }
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
