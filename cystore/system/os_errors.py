"""The only module that sorts the operating system's errors: a failed sync, a missing resource, or any other."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from cystore.errors import (
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StorePermissionError,
    StoreResourceError,
)
from cystore.system.folders import check_place

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
FULL_BYTES = 64 << 10  # others may have freed a block meanwhile
_NO_RESOURCE = {
    errno.EMFILE: "this process has no descriptor left (`ulimit -n`)",
    errno.ENFILE: "this host has no descriptor left",
    errno.ENOMEM: "there is no memory, or no room for another mapping",
    errno.EAGAIN: "the system asks to try again",
    errno.EINTR: "a signal interrupted the call",
}


@contextlib.contextmanager
def translated(path: Path | str) -> Iterator[None]:
    """Turns an OSError into the store's error, with the path.

    Three classes: a failed sync (SyncFailedError, raised at the sync), a missing resource (StoreFullError,
    StoreResourceError), and all others, from a broken disk or a changed directory (StoreIOError,
    StorePermissionError). If the store's directory is not at its path any more, that is the reason
    (StoreMovedError).
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and isinstance(path, Path):
            check_place(path)
        raise sorted_error(error, path) from error


def sorted_error(error: OSError, path: Path | str) -> StoreError:
    """The store's error for one of the system's: see `translated`."""
    code, text = error.errno, error.strerror
    if isinstance(error, PermissionError):
        return StorePermissionError(f"access refused: {text}", path=path)
    if code in (errno.ELOOP, errno.ENOTDIR) and (link := _link_in(Path(str(path)))) is not None:
        return link_refused(link)
    if code == errno.ENOTDIR and (found := _no_folder_in(Path(str(path)))) is not None:
        return StoreIOError("this is not a folder, where the store needs one; move it away", path=found)
    if code == errno.EISDIR:
        return StoreIOError("this is a folder, where the store needs a file; move it away", path=path)
    if code in _NO_SPACE or (code == errno.EFAULT and _is_full(path)):
        return StoreFullError("no space left on the disk; make space, then appends work again", path=path)
    if code in _NO_RESOURCE:
        return StoreResourceError(f"{text}: {_NO_RESOURCE[code]}; nothing changed, try again", path=path)
    if code == errno.EFAULT:
        return StoreIOError(
            "a page of the mapped file cannot be had: its disk failed, or the file was cut; `cystore verify` tells",
            path=path,
        )
    return StoreIOError(f"{text}", path=path)


def _is_full(path: Path | str) -> bool:
    """Whether the disk has no free block. The kernel says only "bad address" when a page of a mapped file got none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES


def lacks_descriptor(error: StoreResourceError) -> bool:
    """Whether this process has no descriptor left. Then it helps nothing to end mappings: they need none."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EMFILE


def is_missing(error: Exception) -> bool:
    """Whether the error says that there is no such file or folder: a cleaner may have removed it."""
    return isinstance(error.__cause__, FileNotFoundError)


def link_refused(path: Path | str) -> StorePermissionError:
    """The error for a symbolic link in place of a store's file or folder."""
    return StorePermissionError(
        "a symbolic link stands in the place of a store's file or folder; remove it, or replace it by its target",
        path=path,
    )


def _link_in(path: Path) -> Path | None:
    """The first part of a path that is a symbolic link."""
    return next((part for part in [*reversed(path.parents), path] if part.is_symlink()), None)


def _no_folder_in(path: Path) -> Path | None:
    """The first part of a path that exists and is not a folder."""
    parts = (*reversed(path.parents), path)
    return next((part for part in parts if os.path.exists(part) and not os.path.isdir(part)), None)


def not_regular(path: Path | str) -> StoreFormatError:
    """The error for a FIFO, socket or device in place of a store's file."""
    return StoreFormatError("this is not a regular file; move it away", path=path)
