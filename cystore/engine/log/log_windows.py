"""Segments that are read with `pread` into windows of private memory, for disks with unreadable sectors.

A page fault on such a sector kills the process; a `pread` of it is an error. A window looks like a short segment: it
begins at the asked offset and ends behind a record, so each record that begins in it is complete.
"""

from __future__ import annotations

from pathlib import Path

from cystore._native.memory.mapping import MappedFile
from cystore._native.scan import log_walk
from cystore.errors import StoreIOError
from cystore.system import files
from cystore.system.os_errors import is_missing
from cystore.system.ranges import unreadable_ranges
from cystore.system.threads import os_threads

WINDOW_BYTES = 128 * 1024  # or one record
KEPT = 16
BLANK_HEAD_BYTES = 8


class LogWindows:
    """The windows that were used last. Safe for threads."""

    def __init__(self) -> None:
        self._kept: list[MappedFile] = []
        self._lock = os_threads.RLock()

    def forget(self) -> None:
        """Lets all windows go."""
        self._kept = []

    def at(self, path: Path, base: int, offset: int, file_end: int, wrote: int) -> MappedFile | None:
        """The window with the record at `offset`, of the segment at `path`; None without a file. Raises
        StoreIOError."""
        for window in self._kept:
            if window.base <= offset < window.end:
                return window
        found = _load(path, base, offset, file_end, wrote)
        if found is not None:
            with self._lock:
                self._kept = [*self._kept, found][-KEPT:]
        return found


def _load(path: Path, base: int, offset: int, file_end: int, wrote: int) -> MappedFile | None:
    room = min(file_end, wrote) - offset
    data = read_range(path, base, offset, min(WINDOW_BYTES, room), least=1)
    if data is None:
        return None
    scanner = log_walk.LogWalker(check_checksum=True, follow_queues=False)
    scanner.limit = offset + room
    scanner.move(offset, file_end)
    status = scanner.run(data, len(data), offset)
    if scanner.position == offset and status == log_walk.MORE and len(data) < scanner.needed <= room:
        data = read_range(path, base, offset, scanner.needed, least=scanner.needed)
        if data is None:
            return None
        scanner.move(offset, file_end)
        status = scanner.run(data, len(data), offset)
    end = scanner.position
    if status == log_walk.BLANK:
        data, end = data[: end - offset + BLANK_HEAD_BYTES], file_end
    elif end == offset:
        end = _end_of_damage(scanner, data, offset, file_end)
    window = MappedFile.anonymous(offset, end - offset, path)
    window.write(0, data[: end - offset])
    return window


def _end_of_damage(scanner: log_walk.LogWalker, data: bytes, offset: int, file_end: int) -> int:
    """The begin of the next valid record, or the end of the part of these bytes that has none."""
    if len(data) < 2:
        return offset + len(data)
    scanner.move(offset + 1, file_end)
    found = scanner.find(data, len(data), offset)
    if found >= 0:
        return found
    return max(scanner.position, offset + 1) if scanner.needed else offset + len(data)


def read_range(path: Path, base: int, begin: int, count: int, *, least: int) -> bytes | None:
    """`count` bytes of the log from `begin` on. Fewer before an unreadable sector, but at least `least`; None without a
    file. Raises StoreIOError with the log position of the unreadable sector."""
    try:
        with files.opened(path) as fd:
            data, error = unreadable_ranges.pread_readable(fd, begin - base, count)
    except StoreIOError as missing:
        if is_missing(missing):
            return None
        raise
    if error is not None and len(data) < least:
        raise StoreIOError(
            f"cannot be read: {error.strerror}", path=path, offset=begin + len(data)
        ) from error
    return data if error is not None else data + bytes(count - len(data))
