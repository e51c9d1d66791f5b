"""A new file of any length, written piece by piece: it gets its name when all of it is durable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cystore._native.system.failpoint import failpoint
from cystore.system.files import make_directory, opened, rename_no_replace, sync, sync_directory, temporary
from cystore.system.os_errors import translated


class NewFile:
    """The file in the making. `length` is what `append` has written."""

    def __init__(self, fd: int, path: Path, begin: int) -> None:
        self._fd, self._path, self.length = fd, path, begin

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Writes behind everything that was appended. Raises StoreFullError."""
        self.length = self.write_at(self.length, data)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        """Writes at a place; returns its end."""
        view = memoryview(data)
        with translated(self._path):
            while view:
                count = os.pwrite(self._fd, view, offset)
                view, offset = view[count:], offset + count
        return offset


@contextmanager
def new_file(root: Path, path: Path, begin: int = 0) -> Iterator[NewFile]:
    """A with block that makes `path`, completely and durably or not at all; FileExistsError if it exists. `append`
    begins at `begin`, what stands before it is for `write_at`."""
    make_directory(path.parent)
    with temporary(root) as draft:
        with opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            yield NewFile(fd, path, begin)
            failpoint("new_file.written")
            sync(fd, path, named=False)
        failpoint("new_file.synced")
        rename_no_replace(draft, path)
    failpoint("new_file.named")
    sync_directory(path.parent)
