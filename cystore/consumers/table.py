"""The table of offsets that all processes of a store share: config/consumers.table, a row for each (topic, group,
queue id).

Every process reads and writes it with pread and pwrite, so all processes see an acknowledged offset at once, and it
survives the kill of every process. config/consumerOffset.json is written from the table every few seconds. After a
power cut only this file is left.

When a store is opened, the table counts if it was written since this boot and the file is still the one that was
written from it. Otherwise the file counts. So a file that was restored, edited, or written by RocketMQ wins.

Rows are only added, up to ROWS_MAX. When the first process opens a store, and at least half of the rows have no offset
(those of removed groups, for example), it makes the table anew without them. Each row is valid by its checksum before
the header counts it. An offset changes under the lock of its row (a byte lock, which ends with its owner), because
`reset` and the owner of a queue may write it at the same time.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

from cystore._native.record.checksum import crc32c
from cystore._native.system.descriptor import ByteLock, Descriptor
from cystore._native.system.failpoint import failpoint
from cystore.attachment.attachment import Attachment
from cystore.clock import monotonic_s
from cystore.consumers import offset_file
from cystore.consumers.names import GROUP_BYTES_MAX
from cystore.consumers.offset_file import ConsumerOffsets, Key, read_consumer_offsets
from cystore.engine.manifest.topic_names import TOPIC_BYTES_MAX
from cystore.errors import (
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StoreNotWritableError,
    StoreResourceError,
    StoreTimeoutError,
)
from cystore.system import files, key_lock, platform
from cystore.system.folders import inside
from cystore.system.key_lock import PlaceLocks
from cystore.system.ranges import file_ranges
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

NAME = "consumers.table"
MAGIC, VERSION = b"CYSCONS1", 2
HEADER_BYTES = 128
# Magic, version, bytes of a row, generation of the control block, boot id; CRC-32C of the file that was written last,
# and of the one that is being written; number of rows.
_HEADER = struct.Struct("<8sIIQ40sIIq")
_GENERATION_AT, _SAVED_AT, _SAVING_AT, _ROWS_AT = 16, 64, 68, 72
_GENERATION, _CRC, _COUNT, _OFFSET = (struct.Struct(f"<{kind}") for kind in "QIqq")
# Offset (-1: none); gets, messages and bytes that gets of the group found; how far behind the last one was: bytes of
# log, messages, ms; queue id, lengths of topic and group, CRC-32C of these and of the names behind them.
_ROW = struct.Struct("<qQQQqqqiHHI4x")
_READS = struct.Struct("<QQQqqq")
_FIXED = struct.Struct("<iHH")
ROW_BYTES = _ROW.size + TOPIC_BYTES_MAX + GROUP_BYTES_MAX + 1
_OFFSETS = struct.Struct(f"<q{ROW_BYTES - 8}x")
ROWS_MAX = 1 << 20
GROW_ROWS = 64  # rows for which space is taken at once
NO_OFFSET = -1
NO_CRC = 0  # the CRC-32C of a missing file

# Places of byte locks: of the opening, of new rows, of the save; then one for each row's offset, its lease, its
# members, and its beginning.
OPENING, ADDING, SAVING = (1 << 40) + 1, (1 << 40) + 2, (1 << 40) + 3
ROWS, LEASES, MEMBERS, BEGINNINGS = 1 << 41, 1 << 42, 1 << 43, 1 << 60
MEMBERS_MAX = 4096  # of one topic and group
COUNT_WAIT_S = 0.5  # the wait of a get for the lock of the row that counts it
NOT_COUNTED_S = 10.0  # after such a wait gets are not counted for this time


class _Header(NamedTuple):
    generation: int
    boot_id: str
    saved: int
    saving: int
    rows: int


class Reads(NamedTuple):
    """The gets of one queue that named a group: their number, and the messages and bytes they found. Then the distance
    of the last get's last message from the queue's end: bytes of log, messages of the queue, and the message's age in
    ms; 0 at the queue's end (BrokerStatsManager: GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_FALL_SIZE,
    GROUP_GET_FALL_TIME)."""

    gets: int
    messages: int
    bytes: int
    behind_bytes: int
    behind_messages: int
    behind_ms: int


class Behind(NamedTuple):
    """The distance of a get's last message from the queue's end; all 0 at the end."""

    bytes: int = 0
    messages: int = 0
    ms: int = 0


class OffsetTable:
    """The table of one attachment. Safe for threads. Methods that change something raise StoreNotWritableError on a
    read-only handle."""

    def __init__(self, parts: Attachment) -> None:
        self._parts, self._lock = parts, os_threads.RLock()
        self.path = parts.root / "config" / NAME
        self.writable = parts.appender is not None
        self.keys: list[Key] = []
        self._rows: dict[Key, int] = {}
        self._boot_id = platform.identity()["boot_id"]
        self._file: Descriptor | None = None
        self._frozen: list[int] | None = None  # the offsets, if no process writes a table
        self._others: ConsumerOffsets | None = None
        self._changes = (
            object()
        )  # of the last change of an offset: a signal handler's comes inside of another one
        self._counts_from_s = 0.0  # on a clock that all threads share; before it no get is counted
        if self.writable:
            self._open()
        else:
            self._look()

    # ------------------------------------------------------------------------------------------- opening

    def _open(self) -> None:
        files.make_directory(self.path.parent)
        file = files.open_file(self.path, os.O_RDWR | os.O_CREAT)
        self._file = file
        with self._taken(OPENING, self._wait_s):
            generation = self._parts.control.generation
            header = self._header()
            if header is not None and header.generation == generation:
                return self.refresh()
            if header is None or not self._counts(header):
                self._make(self._from_file(header))
            else:
                self._drop_unused(header)
            self._write(_GENERATION_AT, _GENERATION.pack(generation))
            self.refresh()

    def _look(self) -> None:
        """For a read-only handle: the table of the processes beside it, or the offsets with which the next writer would
        begin."""
        if self.path.exists():
            self._file = files.open_file(self.path, os.O_RDONLY)
            header = self._header()
            if header is not None and (
                header.generation == self._parts.control.generation or self._counts(header)
            ):
                return self.refresh()
            self._file = None
        rows = sorted(read_consumer_offsets(self._parts.root).offsets.items())
        self._frozen = []
        for number, (key, offset) in enumerate(rows):
            self.keys.append(key)
            self._rows[key] = number
            self._frozen.append(offset)

    def _header(self) -> _Header | None:
        """The header; None if it was never finished, is damaged, or is of another version."""
        file = self._opened
        if file_ranges.length_of(file.fd, self.path) < HEADER_BYTES:
            return None
        data = self._read(0, HEADER_BYTES)
        magic, version, row_bytes, generation, boot_id, saved, saving, rows = _HEADER.unpack_from(data)
        length = file_ranges.length_of(file.fd, self.path)
        if (
            (magic, version, row_bytes) != (MAGIC, VERSION, ROW_BYTES)
            or not 0 <= rows <= (length - HEADER_BYTES) // ROW_BYTES
        ):  # fmt: skip
            return None
        return _Header(generation, boot_id.rstrip(b"\0").decode("ascii", "replace"), saved, saving, rows)

    def _counts(self, header: _Header) -> bool:
        """Whether the table of earlier processes is newer than the file."""
        if header.boot_id != self._boot_id:
            return False
        data = files.read_if_there(offset_file.path_of(self._parts.root))
        if (NO_CRC if data is None else crc32c(data)) not in (header.saved, header.saving):
            return False
        try:
            self._rows_from(0, header.rows)
        except StoreFormatError as error:
            log.warning("%s; continuing with %s", error, offset_file.path_of(self._parts.root))
            return False
        return True

    def _from_file(self, header: _Header | None) -> dict[Key, int]:
        """The file's offsets. If the file and its copy are damaged, the offsets of a table that was written since this
        boot."""
        try:
            return read_consumer_offsets(self._parts.root).offsets
        except StoreFormatError as error:
            if header is None or header.boot_id != self._boot_id:
                raise
            log.warning("%s; continuing with %s", error, self.path)
            return {key: offset for key, offset, _ in self._rows_from(0, header.rows) if offset != NO_OFFSET}

    def _drop_unused(self, header: _Header) -> None:
        """Makes the table anew without the rows that have no offset, if these are at least half of them. This is the
        first process, so no other one knows the number of a row. The file gets all offsets first, because a kill leaves
        half a table. The counts of gets begin anew."""
        offsets = {key: offset for key, offset, _ in self._rows_from(0, header.rows) if offset != NO_OFFSET}
        if header.rows <= GROW_ROWS or 2 * len(offsets) > header.rows:
            return
        self.refresh()
        try:
            self.save()
        except StoreError as error:
            log.warning("%s; the unused rows of %s stay", error, self.path)
            return
        self._rows.clear()
        self.keys.clear()
        self._make(offsets)

    def _make(self, offsets: dict[Key, int]) -> None:
        """Makes the table anew. If this is interrupted before the header is complete, the next process makes it
        again."""
        self._write(0, bytes(HEADER_BYTES))
        failpoint("consumers.table_begun")
        rows = b"".join(_row(key, offset) for key, offset in sorted(offsets.items()))
        self._grow(len(offsets))
        self._write(HEADER_BYTES, rows)
        data = files.read_if_there(offset_file.path_of(self._parts.root))
        crc = NO_CRC if data is None else crc32c(data)
        boot_id = self._boot_id.encode("ascii")
        failpoint("consumers.table_filled")
        self._write(0, _HEADER.pack(MAGIC, VERSION, ROW_BYTES, 0, boot_id, crc, crc, len(offsets)))

    # --------------------------------------------------------------------------------------------- bytes

    @property
    def _opened(self) -> Descriptor:
        """Its user keeps the object: a close by another thread must not close a number that is still in use, because
        the next file that is opened gets that number."""
        file = self._file
        if self._parts.control.closed or file is None:
            raise StoreClosedError("the store is closed", path=self._parts.root)
        return file

    def _read(self, at: int, count: int) -> bytes:
        """Raises StoreFormatError if the file ends earlier: then somebody has truncated it."""
        with files.translated(self.path):
            file = self._opened
            data = files.pread_full(file.fd, at, count, self.path)
        if len(data) < count:
            raise StoreFormatError(
                "the table of consumer groups was truncated while processes use it: close all processes of the "
                "store; the next one makes the table anew",
                path=self.path,
                offset=at + len(data),
            )
        return data

    def _write(self, at: int, data: bytes) -> None:
        with files.translated(self.path):
            file = self._opened
            while data:
                written = os.pwrite(file.fd, data, at)
                at, data = at + written, data[written:]

    def _grow(self, rows: int) -> None:
        """Takes space for rows. Raises StoreFullError."""
        with files.translated(self.path):
            file = self._opened
            room = os.fstat(file.fd).st_blocks * files.BLOCK_BYTES
        if room < HEADER_BYTES + ROW_BYTES * rows:
            more = HEADER_BYTES + ROW_BYTES * (rows + GROW_ROWS)
            files.allocate(file.fd, 0, more, self.path)

    @property
    def _wait_s(self) -> float:
        return self._parts.config.sync_flush_timeout_ms / 1000

    @contextmanager
    def _locked(self, place: int) -> Iterator[None]:
        """A with block under a byte lock. Only for what runs undisturbed: an exception of a signal handler between the
        block and the end of this generator would keep the lock."""
        with self._lock, self._taken(place):
            yield

    def _taken(self, place: int, wait_s: float | None = None) -> ByteLock:
        if not self.writable:
            raise StoreNotWritableError("the store is open for reading only", path=self._parts.root)
        wait_s = self._wait_s if wait_s is None else wait_s
        return key_lock.taken(self._opened, place, wait_s, "the offsets of consumer groups", self.path)

    # ---------------------------------------------------------------------------------------------- rows

    def refresh(self) -> None:
        """Reads the rows that were added since the last look."""
        if self._frozen is not None:
            return
        (count,) = _COUNT.unpack(self._read(_ROWS_AT, 8))
        if count <= len(self.keys):
            return
        with self._lock:
            known = len(self.keys)
            for key, _, _ in self._rows_from(known, count):
                self._rows[key] = len(self.keys)
                self.keys.append(key)

    def _rows_from(self, begin: int, end: int) -> list[tuple[Key, int, Reads]]:
        data = self._read(HEADER_BYTES + begin * ROW_BYTES, (end - begin) * ROW_BYTES)
        found = []
        for at in range(0, len(data), ROW_BYTES):
            offset, *reads, queue_id, topic_bytes, group_bytes, crc = _ROW.unpack_from(data, at)
            names = data[at + _ROW.size : at + _ROW.size + topic_bytes + group_bytes]
            if (
                topic_bytes > TOPIC_BYTES_MAX
                or group_bytes > GROUP_BYTES_MAX
                or crc != crc32c(_FIXED.pack(queue_id, topic_bytes, group_bytes) + names)
            ):
                raise StoreFormatError(
                    "a row of the table of consumer groups is damaged: close all processes of the store; the "
                    "next one makes the "
                    "table anew",
                    path=self.path,
                    offset=HEADER_BYTES + begin * ROW_BYTES + at,
                )
            key = (names[:topic_bytes].decode("ascii"), names[topic_bytes:].decode("ascii"), queue_id)
            found.append((key, offset, Reads(*reads)))
        return found

    def find(self, key: Key) -> int | None:
        """The row of a key; None without one."""
        row = self._rows.get(key)
        if row is None:
            self.refresh()
            row = self._rows.get(key)
        return row

    def row(self, key: Key, wait_s: float | None = None) -> int:
        """The row of a key, which is added if it is missing. Raises StoreFullError, StoreTimeoutError, and
        StoreResourceError for a table that is full."""
        row = self.find(key)
        return undisturbed(partial(self._add_row, key, wait_s)) if row is None else row

    def _add_row(self, key: Key, wait_s: float | None) -> int:
        with self._lock, self._taken(ADDING, wait_s):
            row = self.find(key)
            if row is None:
                count = len(self.keys)
                if count >= ROWS_MAX:
                    raise StoreResourceError(
                        f"the table of consumer groups has {count} queues of groups, the most that it takes: remove "
                        "groups, and let all processes close the store, so that the next one makes the table anew",
                        path=self.path,
                    )
                self._grow(count + 1)
                self._write(HEADER_BYTES + count * ROW_BYTES, _row(key, NO_OFFSET))
                failpoint("consumers.row_written")
                self._write(_ROWS_AT, _COUNT.pack(count + 1))
                row = self.find(key)
            assert row is not None
            return row

    def offset(self, row: int) -> int:
        """The offset of a row; NO_OFFSET for none."""
        if self._frozen is not None:
            return self._frozen[row]
        return int(_OFFSET.unpack(self._read(HEADER_BYTES + row * ROW_BYTES, 8))[0])

    def offsets(self) -> list[int]:
        """The offsets of all rows of `keys`."""
        if self._frozen is not None:
            return self._frozen
        self.refresh()
        data = self._read(HEADER_BYTES, len(self.keys) * ROW_BYTES)
        return [offset for (offset,) in _OFFSETS.iter_unpack(data)]

    def set_offset(self, row: int, offset: int, *, expected: int | None = None) -> bool:
        """Moves the offset of a row; False, and nothing changes, if it is not the `expected` one."""
        at, data = HEADER_BYTES + row * ROW_BYTES, _OFFSET.pack(offset)
        with self._lock, self._taken(ROWS + row), files.translated(self.path):
            file = self._opened
            while True:
                self._changes = mine = object()
                if expected is not None and self.offset(row) != expected:
                    return False
                if self._changes is mine:  # no signal handler comes between here and the call of `pwrite`
                    os.pwrite(file.fd, data, at)
                    return True

    def all_reads(self) -> list[tuple[Key, Reads]]:
        """The gets of each row that named the group, since this boot."""
        if self._frozen is not None:
            return []
        self.refresh()
        return [(key, reads) for key, _, reads in self._rows_from(0, len(self.keys))]

    def count_get(self, key: Key, messages: int, size_bytes: int, behind: Behind | None) -> None:
        """Adds a get that named the group; `behind` None leaves that as it was. If a get cannot be counted, because
        another process has a lock or a full disk has no room for a row, the get does not fail or wait for long."""
        if monotonic_s() < self._counts_from_s:
            return
        try:
            self._count_get(self.row(key, COUNT_WAIT_S), messages, size_bytes, behind)
        except (StoreTimeoutError, StoreFullError, StoreResourceError) as error:
            self._counts_from_s = monotonic_s() + NOT_COUNTED_S
            log.warning("%s; gets of groups are not counted for %g s", error, NOT_COUNTED_S)

    def _count_get(self, row: int, messages: int, size_bytes: int, behind: Behind | None) -> None:
        with self._lock, self._taken(ROWS + row, COUNT_WAIT_S):
            old = self._rows_from(row, row + 1)[0][2]
            fallen = old[3:] if behind is None else behind
            new = _READS.pack(old.gets + 1, old.messages + messages, old.bytes + size_bytes, *fallen)
            self._write(HEADER_BYTES + row * ROW_BYTES + 8, new)

    def beginning(self, row: int) -> AbstractContextManager[None]:
        """A with block in which no other process or thread begins the topic and group of a row. Raises
        StoreTimeoutError."""
        return self._locked(BEGINNINGS + row)

    def locks(self) -> PlaceLocks:
        """Locks of a consumer, which end with it."""
        return PlaceLocks(self.path)

    # ---------------------------------------------------------------------------------------------- file

    def save(self) -> bool:
        """Writes config/consumerOffset.json if an offset changed since; the log is made durable first, so that the file
        never names messages that a power cut takes away. Raises StoreFullError, FlushFailedError; StoreIOError, after
        it wrote the file, if the table was deleted or replaced: then processes that open the store later do not see the
        offsets of this process."""
        return undisturbed(self._save)

    def _save(self) -> bool:
        parts = self._parts
        with self._lock, self._taken(SAVING):
            offsets = {
                key: offset
                for key, offset in zip(self.keys, self.offsets(), strict=False)
                if offset != NO_OFFSET and key[2] >= 0
            }
            if self._others is None:
                self._others = self._offsets_of_file()
            data = offset_file.render(offsets, self._others.others)
            crc = crc32c(data)
            is_known = self._is_known()
            if is_known and self._read(_SAVED_AT, 8) == 2 * _CRC.pack(crc):
                return False
            if not offsets and not self._others.others and not offset_file.path_of(parts.root).exists():
                return False
            parts.flusher.flush_to(parts.control.log_end)
            self._write(_SAVING_AT, _CRC.pack(crc))
            failpoint("consumers.saving")
            offset_file.write(parts.root, data)
            failpoint("consumers.saved")
            self._write(_SAVED_AT, _CRC.pack(crc))
            if not is_known:
                raise StoreIOError(
                    "the table of consumer groups was deleted or replaced while processes use it; their offsets are in "
                    f"{offset_file.path_of(parts.root).name} now: close all processes of the store and open them again",
                    path=self.path,
                )
            return True

    def _is_known(self) -> bool:
        """Whether the path still leads to the table of this process."""
        with files.translated(self.path), inside(self.path) as (folder, name):
            file = self._opened
            mine = os.fstat(file.fd)
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return os.path.samestat(mine, found)

    def _offsets_of_file(self) -> ConsumerOffsets:
        try:
            return read_consumer_offsets(self._parts.root)
        except StoreFormatError:
            return ConsumerOffsets()  # it is damaged; the offsets of the table replace it

    def close(self) -> None:
        """From now on calls raise StoreClosedError. Calls of other threads that have begun end with the file open."""
        self._file = None


def _row(key: Key, offset: int) -> bytes:
    topic, group, queue_id = key[0].encode("ascii"), key[1].encode("ascii"), key[2]
    fixed = _FIXED.pack(queue_id, len(topic), len(group))
    crc = crc32c(fixed + topic + group)
    return (_ROW.pack(offset, 0, 0, 0, 0, 0, 0, queue_id, len(topic), len(group), crc) + topic + group).ljust(
        ROW_BYTES, b"\0"
    )
