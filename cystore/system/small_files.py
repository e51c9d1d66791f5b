"""Small files that are written completely or not at all, in space reserved earlier: a full disk does not stop a write.

Three files take turns: NAME, the last good copy NAME.bak, and NAME.spare, whose space was reserved earlier. New content
is written into the spare, in place. Then names are exchanged twice: the spare with NAME, and the old NAME with
NAME.bak. The previous copy becomes the next spare. A kill in between leaves NAME complete, and an older copy. Blanks
fill the rest of a file's room; JSON allows blanks at its end.

When a full disk leaves no space for a spare, NAME.bak becomes the spare: until the write ends, NAME is the only copy.
"""

from __future__ import annotations

import os
from pathlib import Path

from cystore._native.system.failpoint import failpoint
from cystore.errors import StoreFullError
from cystore.system import files
from cystore.system.file_system import move_onto

PAGE_BYTES = 4096
SPARE = ".spare"


def reserve_room(path: Path, length: int) -> None:
    """Reserves space for the next `write_in_room` of up to `length` bytes. Raises StoreFullError."""
    files.make_directory(path.parent)
    spare = path.with_name(path.name + SPARE)
    with files.opened(spare, os.O_RDWR | os.O_CREAT) as fd, files.translated(spare):
        _grow(fd, length, length, spare)


def write_in_room(path: Path, data: bytes) -> bool:
    """Writes `data`, JSON text, completely or not at all; the last good copy stays beside it. False if there is no room
    for the next write. Raises StoreFullError if `data` does not fit into the reserved room and the disk has no space
    for more."""
    spare, copy = path.with_name(path.name + SPARE), path.with_name(path.name + ".bak")
    files.make_directory(path.parent)
    try:
        room = _write_spare(spare, data)
    except StoreFullError:
        if not (path.exists() and copy.exists() and copy.stat().st_size >= len(data)):
            raise
        move_onto(copy, spare, exchange=False)
        room = _write_spare(spare, data)
    failpoint("files.written")
    first = not path.exists()
    move_onto(spare, path, exchange=not first)
    failpoint("files.replaced")
    if not first:
        move_onto(spare, copy, exchange=copy.exists())
        failpoint("files.backup_gone")
    files.sync_directory(path.parent)
    try:
        reserve_room(path, room)  # for the next time, while there is space
    except StoreFullError:
        return False  # the spare, or the copy, may be long enough
    return True


def _write_spare(spare: Path, data: bytes) -> int:
    """Writes `data` durably into the spare, which grows if need be; returns its room."""
    with files.opened(spare, os.O_RDWR | os.O_CREAT) as fd, files.translated(spare):
        _grow(fd, len(data), len(data) + len(data) // 4, spare)
        view = memoryview(data.ljust(os.fstat(fd).st_size, b" "))
        at = 0
        while at < len(view):
            at += os.pwrite(fd, view[at:], at)
        files.sync(fd, spare, named=False)
        return os.fstat(fd).st_size


def _grow(fd: int, length: int, better: int, path: Path) -> None:
    """Makes the file at least `length` bytes long and reserves them all. If the file has to grow, it grows to `better`
    if there is space for that."""
    status = os.fstat(fd)
    if length <= status.st_size <= status.st_blocks * 512:
        return
    needed = max(_pages(length), _pages(status.st_size))
    wanted = max(_pages(better), needed)
    try:
        files.allocate(fd, 0, wanted, path)
    except StoreFullError:
        files.allocate(fd, 0, needed, path)
        wanted = needed
    os.ftruncate(fd, wanted)


def _pages(length: int) -> int:
    return -(-length // PAGE_BYTES) * PAGE_BYTES
