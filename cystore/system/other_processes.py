"""Tells a reader that recovered a store for itself when another process has come since.

No process is attached when it begins. A process that attaches later locks byte 0 of `lock`, and makes and removes files
in the store's directory, so the directory's times show even one that has left again. The manifest's times show a repair
by a tool.
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
    """Says when a view of files is outdated, because others may have changed them."""

    # True: the view stays as it is until it is outdated, so one look behind a read is enough. False: each look takes
    # over what others have committed since, so a read begins with one.
    is_still: bool

    def moved(self) -> bool:
        """Whether it has. From then on the answer stays the same."""

    def leave(self) -> None:
        """Ends the view."""


class Ground:
    """The state of a store's files when this was made. A look costs three system calls."""

    is_still = True

    def __init__(self, root: Path, locks: StoreLocks | None) -> None:
        self._root, self._locks = root, locks
        self._paths = [os.fspath(root / name) for name in WITNESSES]
        self._left = os_threads.Flag()
        self._seen = self._look()

    def settled(self) -> bool:
        """Waits until the clock of file times has moved, so that each later change shows. False if a process came
        meanwhile."""
        newest = max((max(status[2:]) for status in self._seen if status is not None), default=0)
        until_s = clock.monotonic_s() + TICK_S
        while clock.file_time_ns() <= newest and clock.monotonic_s() < until_s:
            os_threads.pause(PAUSE_S)
        return not self.moved()

    def moved(self) -> bool:
        """Whether a process is attached now, or was since this was made."""
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
        """Ends the use of the descriptors. The answer is yes from now on."""
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
