"""Pages of a file that are brought into memory before a mapping needs them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cystore._native.memory.mapping import MappedFile
from cystore._native.system.descriptor import open_in
from cystore.errors import StoreError
from cystore.system.files import opened

HERE = -100  # AT_FDCWD
PIECE_BYTES = 64 * 1024  # a pipe's size, by which sendfile copies


def write_zeros_ahead(path: Path, begin: int, end: int) -> None:
    """Writes zeros into [begin, end) of a file, for a mapping that writes there in order. The caller holds the lock of
    those who write there, and nothing was written there yet. Where that fails, page faults bring the pages in later.

    The kernel copies pieces of 64 KiB from /dev/zero. So the page cache gets pages of that size, and a page fault maps
    one as a whole. A slow writer makes the disk write a page as a whole for each change, so pages are not larger.
    """
    with (
        contextlib.suppress(StoreError, OSError),
        open_in(HERE, "/dev/zero", os.O_RDONLY) as zeros,
        opened(path, os.O_WRONLY) as fd,
    ):
        while begin < end:
            # First up to a multiple of the piece: a page's place in the file is a multiple of its size.
            upto = min(end, begin - begin % PIECE_BYTES + PIECE_BYTES) if begin % PIECE_BYTES else end
            os.lseek(fd, begin, os.SEEK_SET)
            count = os.sendfile(fd, zeros, None, upto - begin)
            if count == 0:  # some containers have an empty file in place of the device
                break
            begin += count


def fault_in(file: MappedFile, begin: int, end: int) -> None:
    """Brings [begin, end) into a mapping that is written soon: one system call takes less time than a page fault for
    each page. Where that fails, page faults come later."""
    with contextlib.suppress(OSError):
        file.populate(begin, end)


class PagesAhead:
    """Reads one file in order, for the page cache alone. Where that fails, page faults bring the pages in later.

    The kernel gives the pages to /dev/null, so it copies nothing. It makes them large, because they are read in order,
    and a large page costs a mapping less than many small ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = contextlib.ExitStack()
        self._fds: tuple[int, int] | None = None

    def __enter__(self) -> PagesAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def read(self, begin: int, end: int) -> None:
        """Reads [begin, end), as far as the file goes, in one call: after each call this thread waits for the
        interpreter."""
        with contextlib.suppress(StoreError, OSError):
            if self._fds is None:
                # One descriptor for all: the kernel makes larger pages the longer a descriptor is read in order.
                nothing = self._files.enter_context(open_in(HERE, os.devnull, os.O_WRONLY))
                self._fds = nothing, self._files.enter_context(opened(self._path))
            nothing, fd = self._fds
            while begin < end:
                count = os.sendfile(nothing, fd, begin, end - begin)
                if count == 0:
                    break
                begin += count
