"""Decides which process may have the store open: the `lock` file and the store directory.

Attached processes share byte 0 of `lock`; a process that is alone (or RocketMQ's JVM) takes it exclusively. Byte 1 is
the gate: a process holds it while it attaches or detaches. Only attached writers share byte 2: a process that gets it
exclusively, under the gate, knows that only readers are attached. Each writer has the byte of its slot in the control
block for itself. All are open-file-description locks: RocketMQ's JVM sees them, and a thread or library that closes
another descriptor does not release them. `flock` on the directory detects a `lock` file that was deleted or replaced.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import time
import weakref
from pathlib import Path

from cystore._native.system.descriptor import ByteLock, Descriptor
from cystore.errors import StoreLockedError, StoreResourceError
from cystore.layout import PROCESS_BYTES_AT
from cystore.system import files
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

LOCK_NAME = "lock"
LOCK_TEXT = b"lock"  # as RocketMQ fills it
STORE_BYTE, GATE_BYTE, WRITERS_BYTE = 0, 1, 2

_F_OFD_GETLK, _F_OFD_SETLK = 36, 37
_FLOCK = struct.Struct("hhqqi0q")
_DIRECTORY_WAIT_S = 5.0
_REPORT_AFTER_S = 5.0


_held: weakref.WeakSet[StoreLocks] = weakref.WeakSet()
_descriptors = (
    os_threads.RLock()
)  # held so that no fork comes between the open or close of a descriptor and its entry in `_held`


class StoreLocks:
    """The descriptors of one attachment. The owner's `close` releases every lock; the kernel does so if the owner is
    killed. A forked child calls `close` too; that does not release the parent's locks."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        self.root = root
        self.path = root / LOCK_NAME
        self._read_only = read_only
        self._owner = os.getpid()
        # Objects: if a signal handler's exception drops this one before `close`, their end releases the locks.
        self._directory_file, self._file = Descriptor(), Descriptor()
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        try:
            with _descriptors:
                _held.add(self)
                # Opened first, so that an exiting process gives it up first: see `_flock`.
                self._directory_file = files.open_file(root, os.O_RDONLY | os.O_DIRECTORY)
                self._file = files.open_file(self.path, flags)
            with files.translated(self.path):
                is_blank = not read_only and not os.pread(self._fd, len(LOCK_TEXT), 0).strip(b"\0")
                if is_blank:
                    os.pwrite(self._fd, LOCK_TEXT, 0)
            if is_blank:
                # Made durable before any other name: it marks the remains of a store whose making a power cut ended.
                files.sync(self._fd, self.path)
                files.sync_directory(self.path.parent)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases all locks and closes the descriptors. Safe to call twice."""
        with _descriptors:
            # An explicit unlock too: a child that another thread is just starting has the descriptors until its exec.
            unlock = os.getpid() == self._owner
            if self._directory >= 0:
                if unlock:
                    fcntl.flock(self._directory, fcntl.LOCK_UN)
                self._directory_file.close()
            if self._fd >= 0:
                if unlock:
                    self._set(STORE_BYTE, fcntl.F_UNLCK, to_the_end=True)
                self._file.close()

    @property
    def _directory(self) -> int:
        return self._directory_file.fd

    @property
    def _fd(self) -> int:
        return self._file.fd

    @property
    def fd(self) -> int:
        """Of `lock`; -1 after `close`."""
        return self._fd

    def _set(self, byte: int, kind: int, *, to_the_end: bool = False) -> bool:
        request = _FLOCK.pack(kind, os.SEEK_SET, byte, 0 if to_the_end else 1, 0)
        try:
            fcntl.fcntl(self._fd, _F_OFD_SETLK, request)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            with files.translated(self.path):
                raise
        return True

    def gate(self) -> ByteLock:
        """A with block in which no other process attaches or detaches; beside a handle for reading only, other such
        handles may. Waits for the others (Ctrl-C works) and logs a long wait."""
        return ByteLock(self._file, GATE_BYTE, shared=self._read_only, waiting=self._report_long_wait)

    def _report_long_wait(self) -> os_threads.Flag:
        """Starts a thread that logs a long wait at the gate, unless the returned flag is set first. The waiting thread
        itself sleeps in the kernel and cannot log."""
        text = "%s: waiting for another process that attaches or detaches, for more than %.0f s"
        through = os_threads.Flag()

        def report() -> None:
            if not through.wait(_REPORT_AFTER_S):
                log.warning(text, self.path, _REPORT_AFTER_S)

        try:
            os_threads.Thread(report, "cystore-gate")
        except StoreResourceError:  # no more threads: report at once
            log.warning(text, self.path, 0)
        return through

    def try_alone(self) -> bool:
        """Takes byte 0 exclusively: True if no other process has the store open."""
        return self._set(STORE_BYTE, fcntl.F_WRLCK)

    def take_alone(self) -> None:
        """For changes to a store that no process has open, under the gate. Raises StoreLockedError if one has it
        open."""
        if not self.try_alone():
            raise StoreLockedError("the store is in use", path=self.root)
        self.claim_directory(alone=True)

    def share(self) -> bool:
        """Takes byte 0 shared, or steps down to it. False if another process holds it exclusively."""
        return self._set(STORE_BYTE, fcntl.F_RDLCK)

    def try_sole_writer(self) -> bool:
        """Takes byte 2 exclusively: True when no other writer is attached. Under the gate, with byte 0 held."""
        return self._set(WRITERS_BYTE, fcntl.F_WRLCK)

    def join_writers(self) -> None:
        """Takes byte 2 shared, or steps down to it: this process is a writer from now on. Called under the gate, where
        no other process of cystore holds byte 2 exclusively."""
        if not self._set(WRITERS_BYTE, fcntl.F_RDLCK):
            raise StoreLockedError("another program holds the lock byte of writers", path=self.path)

    def holder(self) -> str:
        """The present users of the store: "nobody", "shared" (attached processes) or "exclusive" (a JVM, or
        exclusive=True)."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, STORE_BYTE, 1, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(self._fd, _F_OFD_GETLK, request))[0]
        return {fcntl.F_UNLCK: "nobody", fcntl.F_RDLCK: "shared", fcntl.F_WRLCK: "exclusive"}[kind]

    def claim_directory(self, *, alone: bool) -> None:
        """Takes `flock` on the directory, shared or exclusive like byte 0. A refusal means that a process is attached
        through another `lock` file."""
        self._flock(fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

    def _flock(self, kind: int) -> None:
        # A killed process loses its locks one after the other: wait a moment for the rest of its exit.
        until = time.monotonic() + _DIRECTORY_WAIT_S
        while True:
            try:
                fcntl.flock(self._directory, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreLockedError(
                        "the lock file was deleted or replaced while processes are attached through the old one; "
                        "stop those processes before you open the store",
                        path=self.path,
                    ) from None
                os_threads.pause(0.005)


def held_slots(root: Path, slots: list[int]) -> set[int]:
    """Those of the slots of the control block whose process is attached: it holds the slot's byte."""
    if not slots:
        return set()
    held = set()
    with files.opened(root / LOCK_NAME) as fd:
        for slot in slots:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, PROCESS_BYTES_AT + slot, 1, 0)
            if _FLOCK.unpack(fcntl.fcntl(fd, _F_OFD_GETLK, request))[0] != fcntl.F_UNLCK:
                held.add(slot)
    return held


def locked_byte(path: Path, byte: int) -> ByteLock:
    """A with block that holds the lock of a byte of a file; makes the file if it is missing. Waits for other threads
    and processes (Ctrl-C works). The kernel releases the lock of a killed process."""
    files.make_directory(path.parent)
    return ByteLock(files.open_file(path, os.O_RDWR | os.O_CREAT), byte, owned=True)


def _close_inherited() -> None:
    """Runs in a forked child: an open descriptor in the child would keep the parent's locks alive."""
    global _descriptors
    _descriptors = os_threads.RLock()
    for locks in list(_held):
        locks.close()


os.register_at_fork(
    before=lambda: _descriptors.acquire(),
    after_in_parent=lambda: _descriptors.release(),
    after_in_child=_close_inherited,
)
