/* cystore/_native/memory/free_lock.h beside the C library's own functions, for tests to call. */
#include <signal.h>
#include <sys/ptrace.h>

#include "free_lock.h"

int known(void) { return free_lock_compare(); }
int init(pthread_mutex_t *mutex) { return robust_init(mutex); }

int inline_take(pthread_mutex_t *mutex) { return free_lock_take(mutex) ? 0 : EBUSY; }
int inline_give(pthread_mutex_t *mutex) { return free_lock_give(mutex) ? 0 : EPERM; }

int library_take(pthread_mutex_t *mutex) { return pthread_mutex_trylock(mutex); }
int library_wait(pthread_mutex_t *mutex) { return robust_lock(mutex, 60000); }
int library_give(pthread_mutex_t *mutex) { return pthread_mutex_unlock(mutex); }
int library_mend(pthread_mutex_t *mutex) { return pthread_mutex_consistent(mutex); }

/* For a process that is traced: stops, takes it and gives it back, stops again. */
int inline_in_steps(pthread_mutex_t *mutex) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) return errno;
    raise(SIGSTOP);
    if (!free_lock_take(mutex) || !free_lock_give(mutex)) return EBUSY;
    raise(SIGSTOP);
    return 0;
}
int step(int child) { return ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 ? 0 : errno; }
