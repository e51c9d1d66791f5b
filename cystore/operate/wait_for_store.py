"""Waits until a process has a store open; and for a while until there is a store again at a path that leads nowhere."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from cystore import MessageStore, StoreIOError, StoreMovedError
from cystore._native.system.descriptor import identity_of
from cystore.clock import monotonic_s
from cystore.engine.inspect.recognize import is_store
from cystore.operate.output import write_note
from cystore.system import files
from cystore.system.folders import LIBC
from cystore.system.threads import os_threads

# inotify(7)
_CAME = 0x100 | 0x80  # IN_CREATE, IN_MOVED_TO
_GONE = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name behind it
_EVENT_BYTES = 64 * 1024
LOOK_S = 1.0  # between two looks whether the path leads to another directory
RETURN_S = 20.0  # a store that is replaced is away for a moment; afterwards the command ends
RETURN_LOOK_S = 0.5


class DirectoryChanges:
    """The new entries of a directory, from now on. A reader of a store makes a file in it at its first attach."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with files.translated(directory):
            self._identity = identity_of(str(directory))
        self._fd = LIBC.inotify_init1(os.O_CLOEXEC)
        if self._fd < 0 or LIBC.inotify_add_watch(self._fd, os.fsencode(directory), _CAME | _GONE) < 0:
            code = ctypes.get_errno()
            self.close()
            with files.translated(directory):
                raise OSError(code, f"cannot be watched: {os.strerror(code)}")
        self._ready = select.poll()
        self._ready.register(self._fd, select.POLLIN)

    def wait(self) -> None:
        """Sleeps until something appeared since the last call. Raises StoreMovedError when the path leads to another
        directory, or nowhere: a folder above may have been renamed, so it looks once a second, too."""
        while True:
            came = bool(self._ready.poll(LOOK_S * 1000))
            if (came and self._has_gone()) or not self._is_here():
                raise StoreMovedError("the store was moved or removed", path=self._directory)
            if came:
                return

    def _has_gone(self) -> bool:
        """Reads what happened. A later directory may have the number of a deleted one, so its events count."""
        data, at, gone = os.read(self._fd, _EVENT_BYTES), 0, False
        while at < len(data):
            _, mask, _, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            gone = gone or bool(mask & _GONE)
        return gone

    def _is_here(self) -> bool:
        try:
            return identity_of(str(self._directory)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def await_store(self) -> None:
        """Returns when there is a store at the path. Raises StoreIOError when none has come for RETURN_S."""
        until_s, told = monotonic_s() + RETURN_S, False
        while not (self._directory.is_dir() and is_store(self._directory)):
            if monotonic_s() >= until_s:
                raise StoreIOError(
                    f"the store was removed or moved away, and none came in its place for {RETURN_S:.0f} s: "
                    "call this again when there is one",
                    path=self._directory,
                )
            if not told:
                write_note(f"{self._directory} was moved away: waiting {RETURN_S:.0f} s for a store there")
                told = True
            os_threads.pause(RETURN_LOOK_S)

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
    open. With `go_on` it follows the path: if the directory is moved away, it waits a while for a store there.

    `look` returns the position in the log up to which it has seen everything.
    """
    if not go_on:
        with opened() as store:
            look(store)
        return
    while True:
        # Made before the first look at the store, so that no open is missed.
        with DirectoryChanges(path) as changes:
            try:
                while True:
                    _look_on(opened, look)
                    changes.wait()
            except StoreMovedError:
                changes.await_store()


def _look_on(
    opened: Callable[[], AbstractContextManager[MessageStore]], look: Callable[[MessageStore], int]
) -> None:
    """Looks again whenever the log has grown, or the handle followed its path, while another process has the store
    open."""
    with opened() as store:
        position, followed = look(store), store.followed
        while store.recovery is None:
            if store.wait_log(position, LOOK_S) or store.followed != followed:
                position, followed = look(store), store.followed


def _position_behind(store: MessageStore, stored_ms: int) -> int:
    """The position of the first record that was stored after a time; the log's end if there is none."""
    log = store.snapshot()
    for part in log.ends_before(log.segments(log.minimum, log.end), stored_ms + 1):
        for message in store.scan(part.begin, part.end):
            if (message.store_timestamp_ms or 0) > stored_ms:
                return message.physical_offset or 0
    return log.end


class Place:
    """The directory in which a command has seen messages, and the time up to which. `moved` tells where to continue
    in another directory that the path leads to now: behind the last message that was seen, by store timestamps."""

    def __init__(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._seen_ms = 0

    def position_in(self, store: MessageStore, position: int) -> int:
        """Call it before each look, with the position from which that would continue; returns the one to use."""
        newest_ms, identity = store.stats()["last_store_timestamp_ms"], identity_of(str(store.path))
        before, self._identity = self._identity, identity
        if before is not None and before != identity:
            write_note(
                f"{store.path} is another directory now: continuing with the messages stored there since"
            )
            position = _position_behind(store, self._seen_ms)
        self._seen_ms = max(self._seen_ms, newest_ms)
        return position
