"""Files that a hand made shorter or longer while processes have them open."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from cystore.system import files
from cystore.system.ranges import file_ranges

log = logging.getLogger("cystore")


def has_length(path: Path, length: int) -> bool:
    """Whether a file is so long. Raises StoreIOError."""
    with files.opened(path) as fd:
        return file_ranges.length_of(fd, path) == length


def mend_length(path: Path, length: int) -> None:
    """Gives a file its length and space again. A process that has it mapped may go on: each page has a place in the
    file then. Raises StoreIOError and StoreFullError."""
    log.error("%s: the file had another length; restoring its %d bytes", path, length)
    file_ranges.extend(path, length)
    file_ranges.shorten(path, length)
    with files.opened(path, os.O_RDWR) as fd:
        files.allocate(fd, 0, length, path)
