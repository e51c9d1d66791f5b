"""Locks for any number of names in one file. A lock ends with the process that holds it.

A name is hashed to the place of a byte; the file may be shorter than that. The lock is an open-file-description lock
on that byte: other processes, and other threads of this process, wait. The kernel releases it if its owner is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cystore._native.system.descriptor import ByteLock, Descriptor
from cystore.clock import monotonic_s
from cystore.errors import StoreLockedError, StoreTimeoutError
from cystore.system import files
from cystore.system.threads import os_threads

PLACES = 1 << 62  # bytes of a file have places up to twice that
LOOK_S = 0.001  # between two tries for a lock that another thread or process holds
_F_OFD_GETLK, _F_OFD_SETLK = 36, 37
_FLOCK = struct.Struct("hhqqi0q")
_held: weakref.WeakSet[KeyLock | PlaceLocks] = weakref.WeakSet()


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
        """Waits until no other thread or process holds the lock. If it has to wait, it calls `before_waiting` first.
        An exception of that call or of a signal handler ends the wait."""
        lock = ByteLock(self._file, self._place, owned=True, waiting=before_waiting)
        _held.add(self)  # before the lock is taken: a child forked right after that must not keep it
        lock.__enter__()
        self._lock = lock

    def give(self) -> None:
        """Safe to call twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.__exit__(None, None, None)
        self._file.close()

    def _forked(self) -> None:
        """Only closes the child's descriptor. An unlock would end the parent's lock; an open descriptor would
        prolong it."""
        self._file.close()


class PlaceLocks:
    """Locks of any number of places in one file. No call waits for a lock. All locks of this object end with `close`,
    with the object, or with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Descriptor = files.open_file(path, os.O_RDWR)
        _held.add(self)

    def try_take(self, place: int) -> bool:
        """Takes a lock. False if another object or process holds it; True if this object holds it already."""
        with files.translated(self._path):
            try:
                self._set(fcntl.F_WRLCK, place)
            except BlockingIOError:
                return False
        return True

    def give(self, place: int) -> None:
        """Releases a lock."""
        with files.translated(self._path):
            self._set(fcntl.F_UNLCK, place)

    def others(self, begin: int, end: int) -> list[int]:
        """The places in [begin, end) whose locks other objects or processes hold, in order. Takes two system calls
        per lock, and one more."""
        found: list[int] = []
        left = [(begin, end)]
        with files.translated(self._path):
            while left:
                low, high = left.pop()
                if low >= high:
                    continue
                asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, low, high - low, 0)
                kind, _, first, count, _ = _FLOCK.unpack(fcntl.fcntl(self._file.fd, _F_OFD_GETLK, asked))
                if kind == fcntl.F_UNLCK:
                    continue
                last = min(first + count, high)
                first = max(first, low)
                found += range(first, last)
                left += [(low, first), (last, high)]
        return sorted(found)

    def close(self) -> None:
        """Releases all locks."""
        self._file.close()

    def _set(self, kind: int, place: int) -> None:
        fcntl.fcntl(self._file.fd, _F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))

    def _forked(self) -> None:
        self._file.close()


class NameLocks:
    """Locks of any number of names in one file, for all threads of a process. A wait for a lock has a limit."""

    def __init__(self, path: Path) -> None:
        files.make_directory(path.parent)
        files.open_file(path, os.O_RDWR | os.O_CREAT).close()
        self._path = path
        # Each `held` uses its own: threads with one file description would not wait for each other.
        self._spare: list[PlaceLocks] = []
        self._owned: set[tuple[str, int]] = set()  # name and thread

    @contextmanager
    def held(self, name: str, wait_s: float) -> Iterator[None]:
        """A with block under the lock of a name. Raises StoreTimeoutError after a wait of `wait_s`; StoreLockedError at
        once in a signal handler or finalizer that interrupts such a block of its own thread."""
        place, until_s = _place(name), monotonic_s() + wait_s
        owner = name, os_threads.native_id()
        if owner in self._owned:
            raise StoreLockedError(
                f"an interrupted call of this thread holds the lock of {name!r}", path=self._path
            )
        try:
            locks = self._spare.pop()
        except IndexError:
            locks = PlaceLocks(self._path)
        try:
            while not locks.try_take(place):
                if monotonic_s() >= until_s:
                    raise StoreTimeoutError(
                        f"another process or thread has had the lock of {name!r} for {wait_s:g} s: it is stopped, or "
                        "its disk does not answer",
                        path=self._path,
                    )
                os_threads.pause(LOOK_S)
            try:
                self._owned.add(owner)
                yield
            finally:
                self._owned.discard(owner)
                locks.give(place)
        except BaseException:
            locks.close()
            raise
        self._spare.append(locks)

    def close(self) -> None:
        """Closes the spare descriptors of the file."""
        while self._spare:
            self._spare.pop().close()


class _BusyError(Exception):
    """Another process has the byte lock."""


def _busy() -> None:
    raise _BusyError


def taken(file: Descriptor, place: int, wait_s: float, what: str, path: Path) -> ByteLock:
    """The lock of a place in a file, for a with block inside one of a lock of this process's threads. Both are objects
    of C, so no exception of a signal handler keeps them. A process that is stopped keeps its locks, so the wait has an
    end: StoreTimeoutError after `wait_s`, which names `what` the lock is of."""
    until_s = monotonic_s() + wait_s
    with files.translated(path):
        while True:
            lock = ByteLock(file, place, waiting=_busy)
            try:
                lock.__enter__()
                return lock  # the block takes it once more, which changes nothing
            except _BusyError:
                if monotonic_s() >= until_s:
                    raise StoreTimeoutError(
                        f"another process has had a lock of {what} for {wait_s:g} s (byte {place}): it is stopped or "
                        "its disk does not answer; `cystore info` lists the processes of the store",
                        path=path,
                    ) from None
            os_threads.pause(LOOK_S)


def is_taken(path: Path, name: str) -> bool:
    """Whether a process holds the lock of a name now."""
    return path.exists() and is_place_taken(path, _place(name))


def is_place_taken(path: Path, place: int) -> bool:
    """Whether a process holds the lock of a place in a file now."""
    with files.opened(path) as fd:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, place, 1, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(fd, _F_OFD_GETLK, asked))[0]
    return bool(kind != fcntl.F_UNLCK)


def _forked() -> None:
    for lock in list(_held):
        lock._forked()


os.register_at_fork(after_in_child=_forked)
