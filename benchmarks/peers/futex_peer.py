"""The floor of a wake-up: one process sleeps on a word of shared memory, another one changes it and wakes."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import time

from benchmarks.suite import workload
from benchmarks.suite.workload import Job, Measure

PAUSE_S = 0.002
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
WAIT, WAKE = 0, 1
WORD = struct.Struct("=I")


def wake(job: Job) -> Measure:
    """Writes numbers into one word; a waiter sleeps until the word changes."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    word = ctypes.c_uint32.from_buffer(memory)
    address = ctypes.addressof(word)
    times_read, times_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            seen = []
            for number in range(job.count):
                while word.value == number:
                    call(SYS_FUTEX, ctypes.c_void_p(address), WAIT, number, None, None, 0)
                seen.append(time.perf_counter_ns())
            with open(times_write, "wb") as out:
                out.write(b"".join(b"%d\n" % at for at in seen))
            code = 0
        finally:
            os._exit(code)
    os.close(times_write)
    time.sleep(0.2)
    sent = []
    for number in range(job.count):
        time.sleep(PAUSE_S)
        sent.append(time.perf_counter_ns())
        word.value = number + 1
        call(SYS_FUTEX, ctypes.c_void_p(address), WAKE, 1, None, None, 0)
    with open(times_read, "rb") as answers:
        seen = [int(line) for line in answers]
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("the process that waits failed")
    return workload.latencies(sent, seen)
