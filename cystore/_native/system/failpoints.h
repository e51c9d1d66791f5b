/* Named places where a process of a test build can be killed or stopped. Other builds do nothing there.
   CYSTORE_FAILPOINT="name" or "name:3" (third pass) or "name:3:stop". */
#ifndef CYSTORE_FAILPOINTS_H
#define CYSTORE_FAILPOINTS_H

#ifdef CYSTORE_FAILPOINTS
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The counter of passes in this process. Several modules contain a place, and a test counts their passes together: the
   environment holds the address of the counter that the first module made. */
static inline int *failpoint_passes(void) {
    static int own, *shared;
    static int of_process;
    int process = 0;
    void *address = NULL;
    if (shared != NULL && of_process == (int)getpid()) return shared;
    const char *known = getenv("CYSTORE_FAILPOINT_PASSES");
    if (known == NULL || sscanf(known, "%d %p", &process, &address) != 2 || process != (int)getpid()) {
        char text[64];
        snprintf(text, sizeof text, "%d %p", (int)getpid(), (void *)&own);
        setenv("CYSTORE_FAILPOINT_PASSES", text, 1);
        address = &own;
    }
    of_process = (int)getpid();
    return shared = (int *)address;
}

static inline void failpoint(const char *name) {
    const char *wanted = getenv("CYSTORE_FAILPOINT");
    size_t length = strlen(name);
    if (wanted == NULL || strncmp(wanted, name, length) != 0) return;
    if (wanted[length] != '\0' && wanted[length] != ':') return;
    if (wanted[length] == ':' &&
        __atomic_add_fetch(failpoint_passes(), 1, __ATOMIC_SEQ_CST) != atoi(wanted + length + 1))
        return;
    // raise() signals this thread: if another thread took the signal, this thread would continue for a moment.
    raise(strstr(wanted + length, ":stop") ? SIGSTOP : SIGKILL);
}
#else
#define failpoint(name) ((void)(name))
#endif

#endif
