"""Parts of files: their bytes read, written, copied and compared; their holes; their lengths changed."""

from __future__ import annotations

import os
from pathlib import Path

from cystore.errors import StoreIOError
from cystore.system.file_system import move_onto
from cystore.system.files import (
    BLOCK_BYTES,
    allocate,
    data_ranges,
    make_directory,
    opened,
    opened_draft,
    pread_full,
    rename_no_replace,
    sync,
    sync_directory,
    temporary,
)
from cystore.system.os_errors import translated

WRITE_BYTES = 8 << 20  # in one call: a signal waits for its end


def pread_into(fd: int, offset: int, buffer: memoryview, path: Path | str = "") -> int:
    """Fills `buffer` from `offset` on; fewer bytes only at the end of the file. A bad sector is a StoreIOError."""
    done = 0
    try:
        while done < len(buffer):
            count = os.preadv(fd, [buffer[done:]], offset + done)
            if count == 0:
                break
            done += count
    except OSError as error:
        raise StoreIOError(f"cannot be read: {error.strerror}", path=path, offset=offset + done) from error
    return done


def write_at(path: Path, pieces: list[tuple[int, bytes]]) -> None:
    """Overwrites (offset, bytes) of a file in place; all of it is durable afterwards."""
    with opened(path, os.O_WRONLY) as fd, translated(path):
        for offset, data in pieces:
            view = memoryview(data)
            while view:
                count = os.pwrite(fd, view, offset)
                view, offset = view[count:], offset + count
        sync(fd, path, data_only=True)


def write_view(path: Path, offset: int, data: memoryview) -> None:
    """Overwrites a part of a file in place. The caller makes it durable."""
    with opened(path, os.O_WRONLY) as fd:
        write_open(fd, offset, data, path)


def write_open(fd: int, offset: int, data: bytes | memoryview, path: Path | str = "") -> None:
    """The same for an open file."""
    view = memoryview(data)
    with translated(path):
        while view:
            count = os.pwrite(fd, view[:WRITE_BYTES], offset)
            view, offset = view[count:], offset + count


def length_of(fd: int, path: Path | str = "") -> int:
    """Length of an open file."""
    with translated(path):
        return os.fstat(fd).st_size


def zero_range(path: Path, begin: int, end: int) -> None:
    """Makes [begin, end) of a file zero, durably; holes stay holes."""
    zeros = bytes(1 << 20)
    with opened(path, os.O_RDWR) as fd:
        for data, hole in data_ranges(fd, begin, end, path):
            with translated(path):
                while data < hole:
                    data += os.pwrite(fd, memoryview(zeros)[: hole - data], data)
        sync(fd, path, data_only=True)


def copy_ranges(root: Path, pieces: list[tuple[Path, int, int]], target: Path) -> None:
    """Makes `target` from [begin, end) of each file in turn, completely and durably or not at all; FileExistsError if
    it exists.

    Holes of a source stay holes.
    """
    make_directory(target.parent)
    with temporary(root) as draft:
        with opened_draft(draft, target) as out:
            at = 0
            for path, begin, end in pieces:
                with opened(path) as fd:
                    for data, hole in data_ranges(fd, begin, end, path):
                        for place in range(data, hole, 1 << 20):
                            chunk = pread_full(fd, place, min(1 << 20, hole - place), path)
                            view = memoryview(chunk)
                            to = at + place - begin
                            while view:
                                with translated(target):
                                    count = os.pwrite(out, view, to)
                                view, to = view[count:], to + count
                at += end - begin
            with translated(target):
                os.ftruncate(out, at)
            sync(out, target, named=False)
        rename_no_replace(draft, target)
    sync_directory(target.parent)


def made_from(root: Path, source: Path, target: Path, length: int, allocated_bytes: int) -> bool:
    """Makes `target`, all zeros, from the space of a file that nobody uses, which may be `target` itself; its first
    `allocated_bytes` are reserved. False, and nothing changes, if there is no such file or it has too little space. A
    crash leaves at most a file in tmp/."""
    try:
        if source.lstat().st_blocks * BLOCK_BYTES < allocated_bytes:
            return False
    except FileNotFoundError:
        return False
    with temporary(root) as draft:
        move_onto(source, draft, exchange=False)
        with opened(draft, os.O_RDWR) as fd, translated(target):
            zeros = bytes(1 << 20)
            for at, hole in data_ranges(fd, 0, os.fstat(fd).st_size, target):
                while at < hole:
                    at += os.pwrite(fd, memoryview(zeros)[: hole - at], at)
            os.ftruncate(fd, length)
            allocate(fd, 0, min(allocated_bytes, length), target)
        move_onto(draft, target, exchange=False)
    return True


def same_bytes(pieces: list[tuple[Path, int, int]], target: Path) -> bool:
    """Whether `target` equals the result of `copy_ranges`."""
    with opened(target) as copy:
        at = 0
        for path, begin, end in pieces:
            with opened(path) as fd:
                for place in range(begin, end, 1 << 20):
                    piece = pread_full(fd, place, min(1 << 20, end - place), path)
                    if pread_full(copy, at, len(piece), target) != piece:
                        return False
                    at += len(piece)
        return length_of(copy, target) == at


def extend(path: Path, length: int) -> None:
    """Makes a file that is too short `length` bytes long, durably; the new part reads as zero."""
    with opened(path, os.O_RDWR) as fd, translated(path):
        if os.fstat(fd).st_size < length:
            os.ftruncate(fd, length)
            sync(fd, path)


def end_at(fd: int, length: int, path: Path) -> None:
    """Ends an open file at `length`, and gives back the space behind that. No process may have mapped the rest."""
    with translated(path):
        os.ftruncate(fd, length)


def shorten(path: Path, length: int) -> None:
    """Shortens a file that is too long to `length` bytes, durably. No process may have mapped the rest."""
    with opened(path, os.O_RDWR) as fd, translated(path):
        if os.fstat(fd).st_size > length:
            os.ftruncate(fd, length)
            sync(fd, path)
