"""The pool after a crash of all processes: its buffers outlive them, and the first process copies what they have to the
segments, before recovery looks at the log. After that a segment has the bytes that a store without a pool would have.

A power cut, a reboot, and the end of a container with a /dev/shm of its own take the buffers away. Then the records
behind the last commit are lost.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from cystore._native.record.record import parse
from cystore._native.system.failpoint import failpoint
from cystore.config import StoreConfig
from cystore.engine.files.log_folders import log_paths, make_segment, segment_path
from cystore.engine.manifest.manifest import Found
from cystore.engine.pool.buffers import SHARED_MEMORY, Taken, folder_of, remove_buffers, taken_in
from cystore.errors import StoreFormatError
from cystore.system import files, ownership
from cystore.system.ranges import file_ranges

log = logging.getLogger("cystore")

PIECE_BYTES = 1 << 20
SIZE_BYTES = 4  # a record begins with its size
WHOLE = "ok"
IDENTITY = ("topic", "queue_id", "queue_offset", "store_timestamp")
ENABLE = "transient_store_pool_enable"


def replay_pool(root: Path, found: Found, config: StoreConfig, *, crashed: bool) -> bool:
    """Copies the buffers that a crash left to their segments, durably, and removes them. True if there were any. For a
    process that is alone in the store; safe to repeat after a kill. Raises StoreFormatError if they do not fit the log,
    StorePermissionError if another user may have written them, StoreFullError."""
    facts = found.facts
    folder = _left_behind(root, found, crashed)
    if folder is None:
        return False
    if not config.allow_any_owner:  # every user may make a folder of that name
        ownership.check_store(folder, ownership.group_id(config.group))
    if not files.names(folder):
        return False  # its owner, another member of the store's group, has to remove it
    minimum = 0 if facts is None else facts.log_begin
    buffers, copied = taken_in(files.names(folder)), 0
    _check_lengths(root, folder, buffers)
    for taken in buffers:
        copied += _replay(root, folder, taken, minimum, config)
        failpoint("pool.replayed")
    remove_buffers(folder)
    log.warning("%s: %d bytes came from the buffers of the pool, which a crash left", root, copied)
    return True


def _left_behind(root: Path, manifest: Found, crashed: bool) -> Path | None:
    facts = manifest.facts
    if facts is not None:
        folder = folder_of(root, facts.store_id)
        if folder.is_dir():
            return folder
        if crashed and facts.settings.get(ENABLE):
            log.info(
                "%s: a crash left no buffers of the pool at %s; after a power cut, or in a copy of the store, the log "
                "ends at the last commit",
                root,
                folder,
            )
        return None
    if not (manifest.problem or crashed) or not SHARED_MEMORY.is_dir():
        return None  # a new store
    prefix = folder_of(root, "").name  # the manifest is damaged or gone, and with it the id
    found = sorted(name for name in files.names(SHARED_MEMORY) if name.startswith(prefix) and name != prefix)
    if len(found) > 1:
        raise StoreFormatError(
            f"the manifest cannot be read, and any of {', '.join(found)} in {SHARED_MEMORY} may be the buffers of this "
            "store's pool, which a crash left; move those of older stores away",
            path=root,
        )
    return SHARED_MEMORY / found[0] if found else None


def _check_lengths(root: Path, folder: Path, buffers: list[Taken]) -> None:
    """Raises StoreFormatError, before anything is changed, for a buffer that is not as long as the segments."""
    segments = [entry for place in log_paths(root) for entry in files.entries(place)]
    lengths = {taken.name: _length(folder / taken.name) for taken in buffers}
    whole = [_length(entry.path) for entry in segments if entry.name.isdecimal()] or [*lengths.values()]
    for name, length in lengths.items():
        if length != max(whole):
            raise StoreFormatError(
                f"a crash left this buffer of the pool with {length} bytes; a segment has {max(whole)}. Move its "
                "folder away to open the store without the buffers",
                path=folder / name,
            )


def _length(path: Path) -> int:
    with files.opened(path) as fd:
        return file_ranges.length_of(fd, path)


def _replay(root: Path, folder: Path, taken: Taken, minimum: int, config: StoreConfig) -> int:
    """Copies one buffer; returns the number of bytes that the segment did not have."""
    source, copied = folder / taken.name, 0
    target = segment_path(root, taken.base)
    with files.opened(source) as buffer:
        length = file_ranges.length_of(buffer, source)
        if taken.base + length <= minimum:
            return 0
        if not target.exists():
            target = make_segment(root, taken.base, length, config)
        file_ranges.extend(target, length)
        with files.opened(target, os.O_RDWR) as segment:
            both = _Both(taken.base, length, buffer, source, segment, target)
            for at in range(taken.begin - taken.base, length, PIECE_BYTES):
                count = min(PIECE_BYTES, length - at)
                there, here = both.read(at, count)
                if here == there or not there.strip(b"\0"):
                    continue
                if here.strip(b"\0"):  # the last commit ended in this piece, or a bit flipped
                    copied += both.settle(both.record_before(taken.begin - taken.base, at))
                    break
                copied += both.copy(at, there, here)
            files.sync(segment, target)
    return copied


class _Record(NamedTuple):
    """An intact record. RocketMQ's checksum is of the body only, so records of one `identity` may differ."""

    data: bytes
    identity: tuple[object, ...]


NONE = _Record(b"", ())


class _Both(NamedTuple):
    """A buffer and its segment, open."""

    base: int
    length: int
    buffer: int
    source: Path
    segment: int
    target: Path

    def read(self, at: int, count: int) -> tuple[bytes, bytes]:
        """The bytes of the buffer and of the segment."""
        there = files.pread_full(self.buffer, at, count, self.source)
        return there, files.pread_full(self.segment, at, count, self.target)

    def copy(self, at: int, there: bytes, here: bytes) -> int:
        """Writes bytes of the buffer to the segment; returns how many of them it did not have."""
        file_ranges.write_open(self.segment, at, there, self.target)
        return here.count(0) - there.count(0)

    def record_before(self, begin: int, at: int) -> int:
        """The begin of the record that has the byte at `at`, or of a damaged one before it. `begin` is the begin of a
        record."""
        piece, of = b"", begin
        while begin < at:
            if begin + SIZE_BYTES > of + len(piece):
                piece, of = (
                    files.pread_full(self.buffer, begin, min(PIECE_BYTES, at - begin), self.source),
                    begin,
                )
                if len(piece) < SIZE_BYTES:
                    break
            size = int.from_bytes(piece[begin - of : begin - of + SIZE_BYTES], "big", signed=True)
            if size <= 0 or begin + size > at:
                break
            begin += size
        return begin

    def settle(self, at: int) -> int:
        """Copies the records from `at` on. A record that is damaged in the buffer, and intact in the segment, stays:
        it was committed, and may be durable."""
        copied = 0
        while at < self.length:
            here = self._record(self.segment, self.target, at)
            there = self._record(self.buffer, self.source, at)
            if here is None and there is None:
                break
            if here is None and there is not None:
                before = files.pread_full(self.segment, at, len(there.data), self.target)
                copied += self.copy(at, there.data, before)
            elif here is not None and (there is None or here.identity == there.identity):
                if there is None or here.data != there.data:
                    log.warning(
                        "%s: the record at %d is damaged in the pool's buffer that a crash left; the segment has it",
                        self.target, self.base + at,
                    )  # fmt: skip
            else:
                raise self._foreign(at)
            at += len((here or there or NONE).data)
        return copied + self._copy_rest(at)

    def _copy_rest(self, at: int) -> int:
        """Copies what is no record: a blank, or damage, which recovery reports."""
        copied = 0
        for piece in range(at, self.length, PIECE_BYTES):
            there, here = self.read(piece, min(PIECE_BYTES, self.length - piece))
            if here == there:
                continue
            if not _fits(here, there):
                raise self._foreign(piece)
            copied += self.copy(piece, there, here)
        return copied

    def _record(self, fd: int, path: Path, at: int) -> _Record | None:
        """The intact record there; None without one."""
        if at + SIZE_BYTES > self.length:
            return None
        size = int.from_bytes(files.pread_full(fd, at, SIZE_BYTES, path), "big", signed=True)
        if not 0 < size <= self.length - at:
            return None
        data = files.pread_full(fd, at, size, path)
        status, fields = parse(data)
        if status != WHOLE or fields["physical_offset"] != self.base + at:
            return None
        return _Record(data, (size, *(fields[name] for name in IDENTITY)))

    def _foreign(self, at: int) -> StoreFormatError:
        return StoreFormatError(
            f"the log was written by a program that did not know the pool: its bytes from here on differ from those of "
            f"{self.source}, which a crash left. Move that folder away to open the store without them",
            path=self.target,
            offset=self.base + at,
        )


def _fits(here: bytes, there: bytes) -> bool:
    """Whether the segment has some of the buffer's bytes and zeros in place of the others."""
    ours, theirs = int.from_bytes(here, "little"), int.from_bytes(there, "little")
    return ours | theirs == theirs
