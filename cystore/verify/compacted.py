"""Verifies the compacted file in force: that it is there, its header, the checksum of every record, and its index's
checksum. `CompactedCheck` does it in slices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from cystore._native.filters.latest import BYTES_OF_SLOT
from cystore._native.record import record
from cystore._native.record.checksum import crc32c
from cystore.engine.files.compacted_file import HEADER_BYTES, Header, numbers, parse_header, path_of
from cystore.engine.manifest.compaction_facts import FileFacts, compaction_of
from cystore.engine.manifest.manifest import Facts, look
from cystore.errors import StoreFormatError, StoreIOError
from cystore.layout import TOTAL_SIZE
from cystore.recovery.walk.findings import Damage
from cystore.system import files
from cystore.system.os_errors import is_missing
from cystore.system.ranges import file_ranges

WINDOW_BYTES = 16 << 20
KIND = "compacted"


def compacted_damage(root: Path) -> Iterator[Damage]:
    """Every damaged range of the file, or that it is missing. A file that is replaced meanwhile is read to its end."""
    missing = missing_file(root)
    if missing is not None:
        yield missing
    known = compaction_of(look(root).facts or Facts()).file
    check = _newest(root)
    if check is not None:
        try:
            other = None if known is None else check.other_than(known)
            if other is not None:
                yield other
            while not check.done:
                yield from check.step(WINDOW_BYTES)
        finally:
            check.close()


def _newest(root: Path) -> CompactedCheck | None:
    """A check of the file with the highest number; None if there is no file."""
    listed = numbers(root)
    while listed:
        try:
            return CompactedCheck(root, listed[-1])
        except StoreIOError as error:
            now = numbers(root)
            if not is_missing(error) or now == listed:
                raise
            listed = now  # it was replaced since it was listed
    return None


def missing_file(root: Path) -> Damage | None:
    """The damage of a store whose compacted file is gone, though the manifest says that there must be one."""
    known = compaction_of(look(root).facts or Facts()).file
    if known is None or max(numbers(root), default=-1) >= known.number:
        return None
    path = path_of(root, known.number)
    why = f"the compacted file is missing; it had the newest records below {known.covered}"
    return Damage(KIND, path, 0, known.size_bytes, why)


class CompactedCheck:
    """Reads one compacted file, in slices, from a position on."""

    def __init__(self, root: Path, number: int, position: int = 0) -> None:
        self.path, self._number = path_of(root, number), number
        self.position = position
        self.done = False
        self._stack = ExitStack()
        fd = self._stack.enter_context(files.opened(self.path))
        self._fd, self._length = fd, file_ranges.length_of(fd, self.path)
        self._header: Header | None = None
        self._problem = ""
        self._checksum = 0
        try:
            data = files.pread_full(fd, 0, min(HEADER_BYTES, self._length), self.path)
            self._header = parse_header(data, self._length)
        except (ValueError, StoreFormatError) as error:
            self._problem = str(error)

    def close(self) -> None:
        """Closes the file."""
        self._stack.close()

    def other_than(self, known: FileFacts) -> Damage | None:
        """The damage of a file that is not the one of its number that the manifest knows."""
        if self._header is None or known.number != self._number or known.describes(self._header):
            return None
        why = "the header: another file has the name of the compacted file that the manifest knows"
        return Damage(KIND, self.path, 0, HEADER_BYTES, why)

    def step(self, max_bytes: int) -> Iterator[Damage]:
        """The damage of the next slice, of about `max_bytes` of records; the index is one slice. `position` and `done`
        are right when all of it was taken."""
        header = self._header
        if header is None:
            self.done = True
            yield Damage(KIND, self.path, 0, min(HEADER_BYTES, self._length), f"the header: {self._problem}")
        elif self.position < header.records_end:
            yield from self._records(max(self.position, HEADER_BYTES), max_bytes, header.records_end)
        if header is not None and self.position >= header.records_end:
            yield from self._index(header)
            self.done = True

    def _records(self, at: int, max_bytes: int, end: int) -> Iterator[Damage]:
        begin, stop, window = at, min(at + max_bytes, end), memoryview(b"")
        while at < stop:
            status, fields = record.parse(window[at - begin :])
            if status == "short" and begin + len(window) < end:
                needed = WINDOW_BYTES
                if len(window) - (at - begin) >= TOTAL_SIZE.form.size:
                    needed = max(needed, TOTAL_SIZE.read(window[at - begin :]))
                if begin < at or len(window) < min(needed, end - at):
                    begin = at
                    window = memoryview(files.pread_full(self._fd, at, min(needed, end - at), self.path))
                    continue
            if status != "ok":
                self.position = end
                yield Damage(KIND, self.path, at, end, f"a record is damaged: {status}")
                return
            at += int(fields["total_size"])
        self.position = at

    def _index(self, header: Header) -> Iterator[Damage]:
        checksum = 0
        for at in range(header.slots_at, header.length, WINDOW_BYTES):
            data = files.pread_full(self._fd, at, min(WINDOW_BYTES, header.length - at), self.path)
            checksum = crc32c(data, checksum)
        if checksum != header.slots_checksum:
            end = header.slots_at + header.slots * BYTES_OF_SLOT
            yield Damage(KIND, self.path, header.slots_at, end, "the checksum of the index is wrong")
