"""The pool after a crash of all processes: its buffers outlive them, and the first process copies what they have to the
segments, before recovery looks at the log. After that a segment has the bytes that a store without a pool would have.

A power cut, a reboot, and the end of a container with a /dev/shm of its own take the buffers away. Then the records
behind the last commit are lost.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from cystore._native.system.failpoint import failpoint
from cystore.engine.files.segments import file_name
from cystore.engine.manifest.manifest import Found
from cystore.engine.pool.buffers import SHARED_MEMORY, Taken, folder_of, remove_buffers, taken_in
from cystore.errors import StoreFormatError
from cystore.system import files
from cystore.system.ranges import file_ranges

log = logging.getLogger("cystore")

DIRECTORY = "commitlog"
PIECE_BYTES = 1 << 20
ENABLE = "transient_store_pool_enable"


def replay_pool(root: Path, found: Found) -> bool:
    """Copies the buffers that a crash left to their segments, durably, and removes them. True if there were any. For a
    process that is alone in the store; safe to repeat after a kill. Raises StoreFormatError if they do not fit the log,
    StoreFullError."""
    facts = found.facts
    folder = _left_behind(root, found)
    if folder is None:
        return False
    minimum = 0 if facts is None else facts.log_begin
    copied = 0
    for taken in taken_in(files.names(folder)):
        copied += _replay(root, folder, taken, minimum)
        failpoint("pool.replayed")
    remove_buffers(folder)
    log.warning("%s: %d bytes came from the buffers of the pool, which a crash left", root, copied)
    return True


def _left_behind(root: Path, manifest: Found) -> Path | None:
    facts = manifest.facts
    if facts is not None:
        if ENABLE not in facts.settings:
            return None
        folder = folder_of(root, facts.store_id)
        return folder if folder.is_dir() else None
    if not manifest.problem or not SHARED_MEMORY.is_dir():
        return None  # a new store
    prefix = folder_of(root, "").name  # the manifest is damaged, and with it the id
    found = sorted(name for name in files.names(SHARED_MEMORY) if name.startswith(prefix) and name != prefix)
    return SHARED_MEMORY / found[0] if len(found) == 1 else None


def _replay(root: Path, folder: Path, taken: Taken, minimum: int) -> int:
    """Copies one buffer; returns the number of bytes that the segment did not have."""
    source, copied = folder / taken.name, 0
    target = root / DIRECTORY / file_name(taken.base)
    with files.opened(source) as buffer:
        length = file_ranges.length_of(buffer, source)
        if taken.base + length <= minimum:
            return 0
        if not target.exists():
            files.create_sized(root, target, length, length)
        file_ranges.extend(target, length)
        with files.opened(target, os.O_RDWR) as segment:
            for at in range(taken.begin - taken.base, length, PIECE_BYTES):
                count = min(PIECE_BYTES, length - at)
                there = files.pread_full(buffer, at, count, source)
                if not there.strip(b"\0"):
                    continue
                here = files.pread_full(segment, at, count, target)
                if here == there:
                    continue
                if not _fits(here, there):
                    raise StoreFormatError(
                        f"the log was written by a program that did not know the pool: its bytes from here on differ "
                        f"from those of {source}, which a crash left. Move that folder away to open the store without "
                        "them",
                        path=target,
                        offset=taken.base + at,
                    )
                file_ranges.write_open(segment, at, there, target)
                copied += count - here.count(0)
            files.sync(segment, target)
    return copied


def _fits(here: bytes, there: bytes) -> bool:
    """Whether the segment has some of the buffer's bytes and zeros in place of the others."""
    ours, theirs = int.from_bytes(here, "little"), int.from_bytes(there, "little")
    return ours | theirs == theirs
