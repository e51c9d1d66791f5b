/* cystore/_native/memory/free_lock.h beside the C library's own functions, for tests to call. */
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int told_when_pending = -1;
/* Tells that it is there, and stays until it is killed. */
static void at_pending(void) {
    if (told_when_pending < 0) return;
    if (write(told_when_pending, "p", 1) != 1) abort();
    for (;;) pause();
}
#define LOCK_PENDING() at_pending()

#include "free_lock.h"

static const uint32_t several_namespaces = 1;
static lock_owner me = {0, 0, 0, 0, NULL, &several_namespaces, -1};

int known(void) {
    me.list_at = lock_compare();
    return me.list_at != 0;
}
int init(pthread_mutex_t *mutex) { return robust_init(mutex); }

int inline_take(pthread_mutex_t *mutex) { return robust_trylock(mutex, &me); }
int inline_wait(pthread_mutex_t *mutex) { return robust_lock(mutex, &me, 60000); }
int inline_wait_briefly(pthread_mutex_t *mutex) { return robust_lock(mutex, &me, 30); }
int inline_give(pthread_mutex_t *mutex) { return robust_unlock(mutex, &me); }

int library_take(pthread_mutex_t *mutex) { return pthread_mutex_trylock(mutex); }
int library_give(pthread_mutex_t *mutex) { return pthread_mutex_unlock(mutex); }

/* From now on this process has a slot: as Control.enter does it. Returns an errno or 0. */
int enter(process_slot *slots, uint32_t slot, uint64_t pid_namespace, int fd) {
    int status = slot_take(fd, slot);
    if (status) return status;
    slots[slot].incarnation++;
    slots[slot].pid_namespace = pid_namespace;
    slots[slot].pid = (uint32_t)getpid();
    me.process = slots[slot].incarnation << PROCESS_SLOT_BITS | slot;
    me.pid = (int32_t)getpid();
    me.pid_namespace = pid_namespace;
    me.slots = slots;
    me.fd = fd;
    return 0;
}
/* As a build whose check of the owner's slot is broken. */
void believe_the_kernel(void) { me.process = 0; }
void pause_when_pending(int told) { told_when_pending = told; }

/* For a process that is traced: stops, takes it and gives it back, stops again. */
int inline_in_steps(pthread_mutex_t *mutex) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) return errno;
    raise(SIGSTOP);
    if (robust_trylock(mutex, &me) || robust_unlock(mutex, &me)) return EBUSY;
    raise(SIGSTOP);
    return 0;
}
int step(int child) { return ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 ? 0 : errno; }
