"""Verifies the compacted file in force: its header, the checksum of every record, and its index's checksum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cystore._native.filters.latest import BYTES_OF_SLOT
from cystore._native.record import record
from cystore._native.record.checksum import crc32c
from cystore.engine.files.compacted_file import HEADER_BYTES, numbers, parse_header, path_of
from cystore.errors import StoreFormatError
from cystore.layout import TOTAL_SIZE
from cystore.recovery.walk.findings import Damage
from cystore.system import files
from cystore.system.ranges import file_ranges

WINDOW_BYTES = 16 << 20
KIND = "compacted"


def compacted_damage(root: Path) -> Iterator[Damage]:
    """Every damaged range of the file. A file that is replaced meanwhile is read to its end."""
    listed = numbers(root)
    if not listed:
        return
    path = path_of(root, listed[-1])
    with files.opened(path) as fd:
        length = file_ranges.length_of(fd, path)
        try:
            header = parse_header(files.pread_full(fd, 0, min(HEADER_BYTES, length), path), length)
        except (ValueError, StoreFormatError) as error:
            yield Damage(KIND, path, 0, min(HEADER_BYTES, length), f"the header: {error}")
            return
        yield from _records(fd, path, header.records_end)
        checksum = 0
        for at in range(header.slots_at, header.length, WINDOW_BYTES):
            data = files.pread_full(fd, at, min(WINDOW_BYTES, header.length - at), path)
            checksum = crc32c(data, checksum)
        if checksum != header.slots_checksum:
            end = header.slots_at + header.slots * BYTES_OF_SLOT
            yield Damage(KIND, path, header.slots_at, end, "the checksum of the index is wrong")


def _records(fd: int, path: Path, end: int) -> Iterator[Damage]:
    begin = at = HEADER_BYTES
    window = memoryview(b"")
    while at < end:
        status, fields = record.parse(window[at - begin :])
        if status == "short" and begin + len(window) < end:
            needed = WINDOW_BYTES
            if len(window) - (at - begin) >= TOTAL_SIZE.form.size:
                needed = max(needed, min(TOTAL_SIZE.read(window[at - begin :]), end - at))
            begin, window = at, memoryview(files.pread_full(fd, at, min(needed, end - at), path))
            status, fields = record.parse(window)
        if status != "ok":
            yield Damage(KIND, path, at, end, f"a record is damaged: {status}")
            return
        at += int(fields["total_size"])
