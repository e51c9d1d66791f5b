"""Pages of a file that are brought into memory before a mapping needs them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cystore._native.memory.mapping import MappedFile
from cystore._native.system.descriptor import Descriptor
from cystore._native.system.pages import read_pages
from cystore.errors import StoreError
from cystore.system.files import opened


def fault_in(file: MappedFile, begin: int, end: int) -> None:
    """Brings [begin, end) into a mapping that is written soon: one system call takes less time than a page fault for
    each page. Where that fails, page faults come later."""
    with contextlib.suppress(OSError):
        file.populate(begin, end)


class PagesAhead:
    """Reads one file in order, for the page cache alone. Where that fails, page faults bring the pages in later.

    The kernel makes the pages large, because they are read in order, and a large page costs a mapping less than many
    small ones. It makes larger ones the longer a descriptor is read, so all reads share one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Descriptor | None = None

    def __enter__(self) -> PagesAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, begin: int, end: int) -> None:
        """Reads [begin, end), as far as the file goes, in one call: after each call this thread waits for the
        interpreter."""
        with contextlib.suppress(StoreError, OSError):
            if self._file is None:
                self._file = opened(self._path)
            read_pages(self._file.fd, begin, end)
