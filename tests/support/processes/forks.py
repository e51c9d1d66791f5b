"""Processes that are forked from one which has everything imported: a start costs milliseconds, not a fifth of a
second.

`Nursery` is that process; the mounts that it makes are seen by it, its children and the thread that made it alone,
and end with them, however they end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from tests.support.process import LOOP, TIMEOUT_S, Process

# Runs in the nursery. A child is led over the socket it was given and dies with its parent.
_NURSERY = """
import ctypes, os, signal, socket, sys
import cystore, tests.support.checks
libc = ctypes.CDLL(None, use_errno=True)
channel = socket.socket(fileno=channel_fd)
def check(failed, what):
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
def fork():
    _, (fd,), _, _ = socket.recv_fds(channel, 1, 1)
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    PR_SET_PDEATHSIG = 1
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.dup2(fd, 0)
        os.dup2(fd, 1)
        os.close(fd)
        sys.stdin = os.fdopen(0)
        exec(loop, {"__name__": "__main__"})
    finally:
        os._exit(0)
def reap(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def own_mounts():
    CLONE_NEWNS, MS_PRIVATE_REC = 0x20000, 0x44000
    check(libc.unshare(CLONE_NEWNS), "unshare")
    check(libc.mount(b"none", b"/", None, MS_PRIVATE_REC, None), "private mounts")
def mount(device, target, kind, options):
    check(libc.mount(device.encode(), target.encode(), kind.encode(), 0, options.encode()), "mount " + target)
def umount(target, detach=False):
    MNT_DETACH = 2
    check(libc.umount2(target.encode(), MNT_DETACH if detach else 0), "umount " + target)
"""


class _Born:
    """A Popen for `Process`, for a child of the nursery."""

    def __init__(self, nursery: Nursery, pid: int, line: socket.socket) -> None:
        self._nursery, self.pid, self.returncode = nursery, pid, None
        self.stdin = os.fdopen(os.dup(line.fileno()), "w", buffering=1)
        self.stdout = os.fdopen(line.detach())

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        if self.returncode is None:
            self.returncode = self._nursery.do("reap(pid)", pid=self.pid)
        return self.returncode


class Child(Process):
    """A process like any other, but forked from a nursery."""

    def __init__(self, nursery: Nursery, pid: int, line: socket.socket) -> None:
        self._process = _Born(nursery, pid, line)  # type: ignore[assignment]
        self.pid = pid

    def end(self) -> None:
        """Lets the process leave by itself and checks that it did so well."""
        self._process.stdin.close()
        self._process.stdout.close()
        code = self.wait()
        assert code == 0, f"process {self.pid} ended with {code}"


class Nursery(Process):
    """The process that the others are forked from; `environment` is theirs too."""

    def __init__(
        self,
        environment: dict[str, str] | None = None,
        *,
        own_mounts: bool = False,
        keep: Sequence[int] = (),
    ) -> None:
        with ExitStack() as stack:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(theirs)
            super().__init__(environment, keep=(theirs.fileno(), *keep))
            self.do(_NURSERY, channel_fd=theirs.fileno(), loop=LOOP)
        self._home: tuple[int, str] | None = None
        if own_mounts:
            self.do("own_mounts()")
            self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.getcwd()
            _see_mounts_of(f"/proc/{self.pid}/ns/mnt", self._home[1])

    def fork(self) -> Child:
        """Another child, led like any process."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._channel, [b"f"], [theirs.fileno()])
            pid = self.do("fork()")
        return Child(self, pid, ours)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        if self._home is not None:
            fd, folder = self._home
            _see_mounts_of(f"/proc/self/fd/{fd}", folder)
            os.close(fd)
        super().__exit__(kind, error, trace)


def _see_mounts_of(namespace: str, folder: str) -> None:
    """Takes this thread, and it alone, to the mounts of another namespace, and to the folder that it was in."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_fs, clone_newns = 0x200, 0x20000
    with open(namespace) as file:
        if libc.unshare(clone_fs) or libc.setns(file.fileno(), clone_newns):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), namespace)
    os.chdir(folder)
