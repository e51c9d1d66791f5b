"""Pages of a file that are brought into memory before a mapping needs them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cystore._native.system.descriptor import open_in
from cystore.errors import StoreError
from cystore.system.files import opened

HERE = -100  # AT_FDCWD


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
