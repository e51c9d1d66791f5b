"""Locks for names: of any number of names in one file, and gone with the process that has one.

A name is hashed to a byte's place in the file, which needs not be that long. The lock is an open-file-description lock on that byte: other
processes and other threads of this one wait. The kernel ends it when its owner is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import weakref
from collections.abc import Callable
from pathlib import Path

from cystore._native.system.descriptor import ByteLock, Descriptor
from cystore.system import files

PLACES = 1 << 62  # bytes of a file have places up to twice that
_F_OFD_GETLK = 36
_FLOCK = struct.Struct("hhqqi0q")
_held: weakref.WeakSet[KeyLock] = weakref.WeakSet()


def _place(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % PLACES


class KeyLock:
    """The lock of a name. It ends with `give`, with this object, or with the process."""

    def __init__(self, path: Path, name: str) -> None:
        files.make_directory(path.parent)
        self._file: Descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT)
        self._place = _place(name)
        self._lock: ByteLock | None = None

    def take(self, before_waiting: Callable[[], None]) -> None:
        """Waits until no other process has it. A signal handler's exception ends the wait. If another one has it, calls
        `before_waiting` first; an exception of that is raised, and ends this object."""
        lock = ByteLock(self._file, self._place, owned=True, waiting=before_waiting)
        _held.add(self)  # before it is taken: a child that is forked right behind that must not keep it
        lock.__enter__()
        self._lock = lock

    def give(self) -> None:
        """Safe to call twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.__exit__(None, None, None)
        self._file.close()

    def _forked(self) -> None:
        """Only closes the child's descriptor: an unlock would end the parent's lock, and an open descriptor would make it last."""
        self._file.close()


def is_taken(path: Path, name: str) -> bool:
    """Whether a process has the lock of a name now."""
    if not path.exists():
        return False
    with files.opened(path) as fd:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, _place(name), 1, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(fd, _F_OFD_GETLK, asked))[0]
    return bool(kind != fcntl.F_UNLCK)


def _forked() -> None:
    for lock in list(_held):
        lock._forked()


os.register_at_fork(after_in_child=_forked)
