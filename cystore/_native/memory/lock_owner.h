/* Which process owns a lock, and whether it still runs.
 *
 * A thread id, which is all that the kernel needs in a lock's word, means another thread in each PID namespace. So a
 * lock also names its owner's process: by the process's slot in the control block (layout/process_slot.py) and the
 * slot's incarnation. A process that runs holds the open-file-description lock on its slot's byte of `lock`. The kernel
 * gives that lock back when the process ends, after it has marked the locks that its threads held. */
#ifndef CYSTORE_LOCK_OWNER_H
#define CYSTORE_LOCK_OWNER_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomics.h"

enum { CYSTORE_F_OFD_GETLK = 36, CYSTORE_F_OFD_SETLK = 37 };

/* One handle of a process on a control block, as the owner of locks. */
typedef struct lock_owner {
    ptrdiff_t list_at;      /* from a thread pointer to the thread's list of robust locks; 0: the C library locks */
    uint32_t process;       /* what a lock names: slot and incarnation; 0: none, this process shares with nobody */
    int32_t pid;            /* of the process that made the handle; in a forked child it is another one's */
    uint64_t pid_namespace;
    process_slot *slots;
    const uint32_t *namespaces; /* 0 while all writers that were ever attached are of one PID namespace */
    int32_t fd;             /* descriptor of `lock`; -1: there is none, or the store was closed */
} lock_owner;

static inline process_slot *process_slots_of(control_block *block) {
    return (process_slot *)((char *)block + CONTROL_PROCESSES_AT);
}
static inline uint32_t slot_of(uint32_t process) { return process & (PROCESS_SLOTS - 1); }
static inline uint32_t incarnation_of(uint32_t process) { return process >> PROCESS_SLOT_BITS; }

static inline int slot_byte(int fd, int command, int kind, uint32_t slot, struct flock *found) {
    struct flock byte = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = PROCESS_BYTES_AT + slot, .l_len = 1};
    int status = fcntl(fd, command, &byte);
    *found = byte;
    return status;
}

/* Takes the lock on a slot's byte. Returns 0, EAGAIN if another process has it, or another errno. */
static inline int slot_take(int fd, uint32_t slot) {
    struct flock unused;
    if (slot_byte(fd, CYSTORE_F_OFD_SETLK, F_WRLCK, slot, &unused) == 0) return 0;
    return errno == EACCES ? EAGAIN : errno;
}

/* Whether a lock's owner is another handle of this process, or this one. */
static inline int owner_is_here(const lock_owner *me, uint32_t process) {
    const process_slot *slot;
    if (process == me->process || process == 0) return 1;
    if (me->slots == NULL) return 0;
    slot = &me->slots[slot_of(process)];
    return load_u32(&slot->incarnation) == incarnation_of(process) &&
           load_u32(&slot->pid) == (uint32_t)me->pid && load_u64(&slot->pid_namespace) == me->pid_namespace;
}

/* Whether the owner of a lock that the kernel calls ownerless may still run: its thread `thread`, or, if that is 0, its
 * process. The kernel errs when a thread of another PID namespace with the same id is killed while it tries to take the
 * lock. Among threads of one namespace it never errs. "May run" is the answer whenever it is not certain that it does
 * not. A process that the caller sees is asked too: its thread may have ended alone, and a child that was just forked
 * may still hold the parent's byte. */
static __attribute__((noinline, cold, unused)) int owner_lives(const lock_owner *me, uint32_t process, int32_t thread) {
    const process_slot *slot;
    int32_t fd = __atomic_load_n(&me->fd, __ATOMIC_SEQ_CST), pid;
    uint64_t pid_namespace;
    struct flock found;
    if (process == 0 || me->process == 0 || load_u32(me->namespaces) == 0) return 0;
    if (fd < 0 || me->pid != (int32_t)getpid()) return 1;
    slot = &me->slots[slot_of(process)];
    if (load_u32(&slot->incarnation) != incarnation_of(process)) return 0;
    pid = (int32_t)load_u32(&slot->pid);
    pid_namespace = load_u64(&slot->pid_namespace);
    if (process != me->process) {
        int status = slot_byte(fd, CYSTORE_F_OFD_GETLK, F_WRLCK, slot_of(process), &found);
        /* A close in another thread sets `fd` to -1 first: then the number may have been another file's. */
        if (__atomic_load_n(&me->fd, __ATOMIC_SEQ_CST) != fd || status != 0) return 1;
        if (found.l_type == F_UNLCK) return 0;
    }
    if (pid <= 0 || pid_namespace != me->pid_namespace) return 1;
    if (thread > 0) return syscall(SYS_tgkill, pid, thread, 0) == 0 || errno != ESRCH;
    return kill(pid, 0) == 0 || errno != ESRCH;
}

#endif
