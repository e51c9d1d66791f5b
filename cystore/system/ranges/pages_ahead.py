"""Pages of a file that are brought into memory before a mapping needs them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cystore.errors import StoreError
from cystore.system.files import opened


class PagesAhead:
    """Reads one file in order, for the page cache alone. Where that fails, page faults bring the pages in later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = contextlib.ExitStack()
        self._fd: int | None = None
        self._bytes = bytearray()

    def __enter__(self) -> PagesAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def read(self, begin: int, end: int) -> None:
        """Reads [begin, end), as far as the file goes, in one call: after each call this thread waits for the
        interpreter."""
        if len(self._bytes) < end - begin:
            self._bytes = bytearray(end - begin)
        piece = memoryview(self._bytes)
        with contextlib.suppress(StoreError, OSError):
            if self._fd is None:
                # One descriptor for all: the kernel makes larger pages the longer a descriptor is read in order.
                self._fd = self._files.enter_context(opened(self._path))
            while begin < end:
                count = os.preadv(self._fd, [piece[: end - begin]], begin)
                if count == 0:
                    break
                begin += count
