"""Ranges that a page fault must not meet: unallocated ranges of a sparse file, and unreadable sectors."""

from __future__ import annotations

import os
from pathlib import Path

from cystore._native.memory.mapping import MappedFile
from cystore.system import files

PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def allocate_sparse(path: Path, file: MappedFile, begin: int, end: int) -> None:
    """Reserves space in the unallocated parts of [begin, end) of a file that is written through its mapping. Raises
    StoreFullError, and StoreIOError because of a FileNotFoundError when the file was removed after it was mapped."""
    if end <= begin or file.in_memory:
        return
    with files.opened(path, os.O_RDWR) as fd:
        with files.translated(path):
            sparse = os.fstat(fd).st_blocks * files.BLOCK_BYTES < file.length
        if sparse and files.is_at(path, file):
            files.allocate(fd, begin - begin % PAGE_BYTES, end, path)


def pread_readable(fd: int, offset: int, count: int) -> tuple[bytes, OSError | None]:
    """Up to `count` bytes at `offset`; fewer at the end of the file, or before the unreadable place."""
    buffer, done = bytearray(count), 0
    while done < count:
        try:
            got = os.preadv(fd, [memoryview(buffer)[done:]], offset + done)
        except OSError as error:
            return bytes(buffer[:done]), error
        if got == 0:
            break
        done += got
    return bytes(buffer[:done]), None
