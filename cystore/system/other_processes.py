"""Tells a reader that recovered a store for itself whether another process has attached since.

No process is attached when the reader begins. A process that attaches later locks byte 0 of `lock`, and makes and
removes files in the store's directory. The directory's times show such a process even after it has detached. The
manifest's times show a repair by a tool.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from cystore import clock
from cystore.system import files
from cystore.system.store_lock import StoreLocks
from cystore.system.threads import os_threads

WITNESSES = ("", "manifest")  # the store's directory itself, and names in it
TICK_S = 0.02  # the longest step of the clock of file times
PAUSE_S = 0.001

Status = tuple[int, int, int, int]


class View(Protocol):
    """Says whether a view of files is outdated, because other processes may have changed them."""

    # True: the view does not change until it is outdated; a reader checks once, after a read. False: each check takes
    # over the commits of other processes; a reader checks before a read.
    is_still: bool

    def moved(self) -> bool:
        """Whether the view is outdated. After the first True the answer stays True."""

    def leave(self) -> None:
        """Ends the view."""


class Ground:
    """The state of a store's files when this object was made. A check costs three system calls."""

    is_still = True

    def __init__(self, root: Path, locks: StoreLocks | None) -> None:
        self._root, self._locks = root, locks
        self._paths = [os.fspath(root / name) for name in WITNESSES]
        self._left = os_threads.Flag()
        self._seen = self._look()

    def settled(self) -> bool:
        """Waits until the clock of file times has moved, so that each later change shows. False if a process attached
        meanwhile."""
        newest = max((max(status[2:]) for status in self._seen if status is not None), default=0)
        until_s = clock.monotonic_s() + TICK_S
        while clock.file_time_ns() <= newest and clock.monotonic_s() < until_s:
            os_threads.pause(PAUSE_S)
        return not self.moved()

    def moved(self) -> bool:
        """Whether a process is attached now, or was attached since this object was made."""
        if self._left.is_set():
            return True
        try:
            held = self._locks is not None and self._locks.holder() != "nobody"
        except (OSError, ValueError):
            if not self._left.is_set():  # else another thread closed the descriptor just now
                raise
            return True
        return held or self._look() != self._seen

    def leave(self) -> None:
        """Closes the descriptors. `moved` answers True from now on."""
        self._left.set()
        if self._locks is not None:
            self._locks.close()

    def _look(self) -> list[Status | None]:
        try:
            return [_status(path) for path in self._paths]
        except OSError:
            with files.translated(self._root):
                raise


def _status(path: str) -> Status | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
