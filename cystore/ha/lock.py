"""The lock on a file that a process takes to replicate a store. The kernel ends the lock when that process ends."""

from __future__ import annotations

from pathlib import Path

from cystore.system.key_lock import KeyLock, is_taken

PATH, NAME = ("config", "replication.lock"), "ha"


class _BusyError(Exception):
    """Another process has the lock."""


def _busy() -> None:
    raise _BusyError


def is_replicated(root: Path) -> bool:
    """Whether a process replicates the store now."""
    return is_taken(root.joinpath(*PATH), NAME)


class ReplicationLock:
    """One process's use of the lock of one store."""

    def __init__(self, root: Path) -> None:
        self._path, self._lock = root.joinpath(*PATH), None

    _lock: KeyLock | None

    def take(self) -> bool:
        """Takes the lock if it is free. Returns whether this process holds it."""
        if self._lock is None:
            lock = KeyLock(self._path, NAME)
            try:
                lock.take(_busy)
            except _BusyError:
                lock.give()
                return False
            except BaseException:
                lock.give()
                raise
            self._lock = lock
        return True

    def give(self) -> None:
        """Releases the lock for another process. Safe to call twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.give()
