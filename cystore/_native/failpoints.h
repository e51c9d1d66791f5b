/* Named places where a test build can be killed or stopped; nothing in other builds.
   CYSTORE_FAILPOINT="name" or "name:3" (third pass) or "name:3:stop". */
#ifndef CYSTORE_FAILPOINTS_H
#define CYSTORE_FAILPOINTS_H

#ifdef CYSTORE_FAILPOINTS
#define FAILPOINTS 1
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void failpoint(const char *name) {
    static int passes; /* one counter a module: a test names one place of it */
    const char *wanted = getenv("CYSTORE_FAILPOINT");
    size_t length = strlen(name);
    if (wanted == NULL || strncmp(wanted, name, length) != 0 || (wanted[length] != '\0' && wanted[length] != ':')) return;
    if (wanted[length] == ':' && __atomic_add_fetch(&passes, 1, __ATOMIC_SEQ_CST) != atoi(wanted + length + 1)) return;
    kill(getpid(), strstr(wanted + length, ":stop") ? SIGSTOP : SIGKILL);
}
#else
#define FAILPOINTS 0
#define failpoint(name) ((void)(name))
#endif

#endif
