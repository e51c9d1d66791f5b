"""Waits until a process has a store open, without polling."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from cystore import MessageStore, StoreIOError
from cystore.system import files
from cystore.system.folders import LIBC

# inotify(7)
_IN_CREATE, _IN_MOVED_TO, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x100, 0x80, 0x400, 0x800
_EVENT_BYTES = 64 * 1024


class DirectoryChanges:
    """Reports new names in a directory. Made before the first look at the directory, it misses nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = LIBC.inotify_init1(os.O_CLOEXEC)
        events = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_MOVE_SELF
        if self._fd < 0 or LIBC.inotify_add_watch(self._fd, os.fsencode(directory), events) < 0:
            code = ctypes.get_errno()
            self.close()
            with files.translated(directory):
                raise OSError(code, f"cannot be watched: {os.strerror(code)}")

    def wait(self) -> None:
        """Sleeps until something appeared since the last call. Raises StoreIOError when the directory is gone."""
        os.read(self._fd, _EVENT_BYTES)
        if not self._directory.is_dir():
            raise StoreIOError("the store was removed", path=self._directory)

    def close(self) -> None:
        """Ends watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DirectoryChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def follow(
    path: Path,
    opened: Callable[[], AbstractContextManager[MessageStore]],
    look: Callable[[MessageStore], int],
    *,
    go_on: bool,
) -> None:
    """Looks at a store once, or with `go_on` again whenever the log has grown; closes it while no other process has it
    open.

    `look` returns the position in the log up to which it has seen everything.
    """
    with ExitStack() as stack:
        # Made before the first look at the store, so that no open is missed.
        changes = stack.enter_context(DirectoryChanges(path)) if go_on else None
        while True:
            with opened() as store:
                position = look(store)
                while changes is not None and store.recovery is None:
                    store.wait_log(position)
                    position = look(store)
            if changes is None:
                return
            changes.wait()
