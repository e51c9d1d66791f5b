"""The pool's buffers: files in /dev/shm that all processes of a store map (RocketMQ's TransientStorePool).

A buffer is as long as a segment. Its name is its state, so each change is one rename:

    free-N                  zeros, for the next segment
    BASE.BEGIN              has the records of the segment at BASE from log position BEGIN on
    used-N                  its records are in the segment; its bytes become zero before it is free
    unbuffered.BASE         no buffer: the segment at BASE began when none was free, and appends go to the segment

A buffer is taken for a segment, or a segment becomes an unbuffered one, under the housekeeping lock and before the
first append to the segment. Only a commit gives a buffer back.
"""

from __future__ import annotations

import contextlib
import logging
import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.config import StoreConfig
from cystore.engine.files.segments import NAME_DIGITS, file_name
from cystore.errors import (
    PoolDeficientError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StorePermissionError,
)
from cystore.system import files, folders, ownership
from cystore.system.os_errors import sorted_error
from cystore.system.platform import available_memory
from cystore.system.ranges import file_ranges
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

SHARED_MEMORY = Path("/dev/shm")
FREE, USED, UNBUFFERED = "free-", "used-", "unbuffered."
_TAKEN = re.compile(rf"(\d{{{NAME_DIGITS}}})\.(\d{{{NAME_DIGITS}}})")
ID_DIGITS = 16


class Taken(NamedTuple):
    """A buffer that has records of a segment: of the one at `base`, from log position `begin` on."""

    base: int
    begin: int
    name: str


def folder_of(root: Path, store_id: str) -> Path:
    """The folder of a store's buffers. Its name has the place of the store, because a copy of the store has the same
    id, and the id, because another store may stand in that place later."""
    with files.translated(root):
        status = root.stat()
    return SHARED_MEMORY / f"cystore-{status.st_dev:x}-{status.st_ino:x}-{store_id[:ID_DIGITS]}"


def taken_in(names: set[str]) -> list[Taken]:
    """The buffers among these names that have records, in the order of the log."""
    found = ((_TAKEN.fullmatch(name), name) for name in names)
    return sorted(Taken(int(one[1]), int(one[2]), name) for one, name in found if one is not None)


def pool_figures(control: Control, root: Path, store_id: str) -> dict[str, int]:
    """The end of the log, the number of buffers, and how many are free (remainTransientStoreBufferNumbs)."""
    free = 0
    if control.pooled:
        with contextlib.suppress(StoreError):  # a reader may be in a container of its own
            free = sum(name.startswith(FREE) for name in files.names(folder_of(root, store_id)))
    return {
        "appended": control.log_end,
        "pool_buffers": control.pool_buffers,
        "remain_transient_store_buffer_numbs": free,
    }


def make_buffers(root: Path, store_id: str, file_bytes: int, config: StoreConfig) -> None:
    """Makes the pool of a store, for a process that is alone in it. Each buffer has its memory from then on. Raises
    StoreConfigError if there is not so much."""
    folder, count = folder_of(root, store_id), config.transient_store_pool_size
    check_memory(count, file_bytes)
    files.make_root(folder, ownership.group_id(config.group))
    for name in files.names(folder):
        files.remove(folder / name, durable=False)
    try:
        for number in range(count):
            path = folder / f"{FREE}{number}"
            files.reserve(path, file_bytes)
            file_ranges.extend(path, file_bytes)
    except StoreFullError as error:
        remove_buffers(folder)
        raise _too_large(count, file_bytes) from error
    except BaseException:
        remove_buffers(folder)
        raise


def check_memory(count: int, file_bytes: int) -> None:
    """Raises StoreConfigError if there is no memory for a pool."""
    if count * file_bytes > min(files.free_space(SHARED_MEMORY)[0], available_memory()):
        raise _too_large(count, file_bytes)


def _too_large(count: int, file_bytes: int) -> StoreConfigError:
    return StoreConfigError(
        f"transient_store_pool_size: {count} buffers of {file_bytes} bytes need {count * file_bytes} bytes of memory; "
        f"{SHARED_MEMORY} has {files.free_space(SHARED_MEMORY)[0]} bytes free, and this host has {available_memory()}"
    )


def remove_buffers(folder: Path) -> None:
    """Removes the pool, if it is there; its processes keep what they have mapped."""
    if not folder.exists():
        return
    for name in sorted(files.names(folder)):
        files.remove(folder / name, durable=False)
    # /dev/shm is sticky: only the user who made the folder can remove it. For others it stays, empty.
    with contextlib.suppress(StorePermissionError):
        files.remove_directory(folder, durable=False)


class BufferPool:
    """The pool of one attachment. Safe for threads."""

    def __init__(self, root: Path, store_id: str, control: Control, config: StoreConfig) -> None:
        place = folder_of(root, store_id)
        if not place.is_dir():
            raise StoreFormatError(
                "the buffers of this store's pool (transient_store_pool_enable) are not here: another /dev/shm has "
                "them. Run all processes of the store with one /dev/shm (in containers: --ipc=container:NAME)",
                path=place,
            )
        with files.translated(place):
            self.folder = folders.held_open(place)
        if not config.allow_any_owner:
            ownership.check_store(self.folder, ownership.group_id(config.group))
        self._control, self._file_bytes = control, control.commit_log_file_bytes
        self._fails_fast = config.fast_fail_if_no_buffer_in_store_pool
        self._mapped: dict[int, MappedFile] = {}
        self._unbuffered: set[int] = set()
        self._locks = True

    def at_hand(self, base: int) -> MappedFile | None:
        """The buffer of the segment at `base`, if this process has it mapped."""
        return self._mapped.get(base)

    def of(self, base: int) -> MappedFile | None:
        """The buffer that has records of the segment at `base`, mapped; None for an unbuffered segment."""
        if base + self._file_bytes <= self._control.wrote:
            return None  # it was given back
        found = self._mapped.get(base)
        if found is not None or base in self._unbuffered:
            return found
        for taken in taken_in(files.names(self.folder)):
            if taken.base == base:
                try:
                    return self._map(base, taken.name)
                except OSError as error:
                    if (
                        isinstance(error, FileNotFoundError)
                        and base + self._file_bytes <= self._control.wrote
                    ):
                        return None  # it was given back meanwhile
                    raise sorted_error(error, self.folder / taken.name) from error
        return None

    def is_unbuffered(self, base: int) -> bool:
        """Whether the segment at `base` has no buffer, because none was free when it began."""
        return base in self._unbuffered or f"{UNBUFFERED}{file_name(base)}" in files.names(self.folder)

    def _map(self, base: int, name: str) -> MappedFile:
        self._forget_below(self._control.wrote)
        path = self.folder / name
        buffer = files.map_file(path, base, self._file_bytes)
        if self._locks:
            try:
                buffer.lock()
            except OSError as error:
                self._locks = False
                log.info("%s: the pool's buffers are not locked in memory: %s (ulimit -l)", path, error)
        return self._mapped.setdefault(base, buffer)

    def _forget_below(self, committed: int) -> None:
        """Ends this process's part in segments that end at or below a committed position."""
        for base in [*self._mapped, *self._unbuffered]:  # copies: another thread, or a handler, adds to them
            if base + self._file_bytes <= committed:
                self._mapped.pop(base, None)
                self._unbuffered.discard(base)

    def writing(self, base: int, segment: MappedFile) -> MappedFile | None:
        """Where appends to a segment go: to a buffer, or to the segment itself if it began when none was free. None if
        the log has left the segment. Raises PoolDeficientError if no buffer is free and the setting wants that."""
        found = self.of(base)
        if found is None:
            found = undisturbed(partial(self._take, base, segment))
        return found

    def _take(self, base: int, segment: MappedFile) -> MappedFile | None:
        control = self._control
        with control.held("housekeeping"):
            found = self.of(base)
            if found is not None:
                return found
            # Read after `of`: a commit may have given the segment's buffer back before, and it is not taken again.
            begin = max(control.log_end, base)
            if begin >= base + self._file_bytes:
                return None
            names, marker = files.names(self.folder), f"{UNBUFFERED}{file_name(base)}"
            free = sorted(name for name in names if name.startswith(FREE))
            if marker not in names:
                if free:
                    name = f"{file_name(base)}.{file_name(begin)}"
                    files.rename_no_replace(self.folder / free[0], self.folder / name)
                    failpoint("pool.taken")
                    with files.translated(self.folder / name):
                        return self._map(base, name)
                if self._fails_fast:
                    raise PoolDeficientError(
                        f"all {control.pool_buffers} buffers of the pool have records that are not committed; nothing "
                        "was appended (fast_fail_if_no_buffer_in_store_pool)",
                        path=segment.path,
                        offset=begin,
                    )
                files.reserve(self.folder / marker, 0)
                log.warning("%s: no buffer of the pool is free; appends go to the segment", segment.path)
            self._unbuffered.add(base)
            return segment

    # ------------------------------------------------------------------------------- under the commit lock

    def give_back(self, committed: int) -> None:
        """Frees the buffers of segments that end at or below a committed position. After a kill in between the next
        call continues."""
        names = files.names(self.folder)
        for taken in taken_in(names):
            if taken.base + self._file_bytes <= committed:
                used = f"{USED}{file_name(taken.base)}"
                files.rename_no_replace(self.folder / taken.name, self.folder / used)
                failpoint("pool.used")
                names.add(used)
        self._forget_below(committed)
        for name in sorted(names):
            if name.startswith(USED):
                with files.translated(self.folder / name):
                    files.map_file(self.folder / name, 0, self._file_bytes).zero(0, self._file_bytes)
                failpoint("pool.zeroed")
                files.rename_no_replace(self.folder / name, self.folder / f"{FREE}{name[len(USED) :]}")
            elif name.startswith(UNBUFFERED) and int(name[len(UNBUFFERED) :]) + self._file_bytes <= committed:
                files.remove(self.folder / name, durable=False)

    # ------------------------------------------------------------------------------------------- the end

    def remove(self) -> None:
        """Removes the pool, for the last process, when all of it is committed."""
        remove_buffers(Path(str(self.folder)))  # its own name cannot be removed from inside

    def forget(self) -> None:
        """Ends this process's mappings that nothing uses."""
        self._mapped.clear()

    def release(self) -> None:
        """`forget`, for good."""
        self.forget()
        with contextlib.suppress(StoreError):
            folders.let_go(self.folder)
