"""A new file of any length, written piece by piece: it gets its name when all of it is durable.

It may be written into a reserve: a file without content that has its space already, so that a full disk is no obstacle.
A kill leaves the reserve, or the new file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cystore._native.system.failpoint import failpoint
from cystore.errors import StoreIOError
from cystore.system.files import (
    make_directory,
    opened,
    opened_draft,
    rename_no_replace,
    sync,
    sync_directory,
    temporary,
)
from cystore.system.os_errors import is_missing, translated
from cystore.system.ranges.file_ranges import end_at


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
def new_file(root: Path, path: Path, begin: int = 0, *, reserve: Path | None = None) -> Iterator[NewFile]:
    """A with block that makes `path`, completely and durably or not at all; FileExistsError if it exists. `append`
    begins at `begin`, what stands before it is for `write_at`. `reserve`: a file that becomes the new one, if it
    exists."""
    make_directory(path.parent)
    with ExitStack() as stack:
        fd = None if reserve is None else _opened_if_there(stack, reserve)
        draft = reserve
        if fd is None or draft is None:
            draft = stack.enter_context(temporary(root))
            fd = stack.enter_context(opened_draft(draft, path))
        file = NewFile(fd, path, begin)
        yield file
        if draft == reserve:
            end_at(fd, file.length, path)
        failpoint("new_file.written")
        sync(fd, path, named=False)
        failpoint("new_file.synced")
        rename_no_replace(draft, path)
    failpoint("new_file.named")
    sync_directory(path.parent)


def _opened_if_there(stack: ExitStack, path: Path) -> int | None:
    try:
        return stack.enter_context(opened(path, os.O_WRONLY))
    except StoreIOError as error:
        if not is_missing(error):
            raise
        return None
