"""Operations on a whole file system: the sync of all dirty pages, and the exchange of two names."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from cystore._native.system.descriptor import Descriptor
from cystore.errors import SyncFailedError
from cystore.system import files
from cystore.system.folders import LIBC, inside

_RENAME_EXCHANGE = 2


KEPT = ".kept"


def move_onto(source: Path, target: Path, *, exchange: bool) -> None:
    """Gives `source` the name `target`; with `exchange` the two swap their names. The change is atomic. It is
    durable after a sync of the folder."""
    with files.translated(target), inside(source) as (here, old), inside(target) as (there, new):
        if not exchange:
            os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)
        elif LIBC.renameat2(here, os.fsencode(old), there, os.fsencode(new), _RENAME_EXCHANGE):
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise OSError(code, os.strerror(code), str(target))
            # This file system cannot exchange names. `target` exists at every moment; a kill can leave a third name.
            kept = source.with_name(source.name + KEPT)
            kept.unlink(missing_ok=True)
            os.link(target, kept)
            os.rename(source, target)
            os.rename(kept, source)


def tells_errors() -> bool:
    """Whether syncfs reports failed writes: Linux does so from 5.8 on."""
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 8)


class FileSystem:
    """The file system that holds a folder. It keeps its descriptor from the first sync on: the kernel reports
    later errors on that descriptor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: Descriptor | None = None

    def sync(self) -> bool:
        """Makes all files and names in it durable. False if the kernel would not report a failure. Raises
        SyncFailedError."""
        if not tells_errors():
            return False
        held = self._open
        if held is None:
            held = self._open = files.open_file(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        while LIBC.syncfs(held.fd):
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise SyncFailedError.of(code, self._folder)
        return True

    def close(self) -> None:
        """Releases the descriptor; a later sync opens another."""
        self._open = None
