"""The only callers of open, fsync, rename, unlink and fallocate on the Python side.

No symbolic link is followed, not as the last part of a path and not on the way to it: a store's root is resolved once, when it is
opened. A new file or folder takes the access of the folder it is made in: for the owner alone, or for a group (`share`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from cystore._native.failpoint import failpoint
from cystore._native.mapping import MappedFile
from cystore.errors import (
    StoreError,
    StoreFullError,
    StoreIOError,
    StorePermissionError,
    StoreResourceError,
    SyncFailedError,
)

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
SHARED_FILE_MODE = 0o660
SHARED_DIRECTORY_MODE = 0o2770  # with the set-group-id bit, what is made inside belongs to the group too
TMP_DIRECTORY = "tmp"

_AT_FDCWD = -100
_FALLOC_FL_KEEP_SIZE = 1
_RENAME_NOREPLACE = 1
_SYS_OPENAT2 = 437  # on every architecture
_RESOLVE_NO_SYMLINKS = 0x04
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_RESOURCE = {
    errno.EMFILE: "this process has no descriptor left (`ulimit -n`)",
    errno.ENFILE: "this host has no descriptor left",
    errno.ENOMEM: "there is no memory, or no room for another mapping",
    errno.EAGAIN: "the system asks to try again",
    errno.EINTR: "a signal interrupted the call",
}


@contextlib.contextmanager
def translated(path: Path | str) -> Iterator[None]:
    """Turns an OSError into the store's error for it, with the path. The one place that sorts errors of the system.

    Three classes: a failed sync (SyncFailedError, raised where a sync is made), a missing resource (StoreFullError,
    StoreResourceError), and everything else, which is a broken disk or a changed directory (StoreIOError,
    StorePermissionError).
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise sorted_error(error, path) from error


def sorted_error(error: OSError, path: Path | str) -> StoreError:
    """The store's error for one of the system's: see `translated`."""
    code, text = error.errno, error.strerror
    if isinstance(error, PermissionError):
        return StorePermissionError(f"access refused: {text}", path=path)
    if code in (errno.ELOOP, errno.ENOTDIR) and (link := _link_in(Path(path))) is not None:
        return link_refused(link)
    if code in _NO_SPACE:
        return StoreFullError("no space left on the disk; free some, appends then go on", path=path)
    if code in _NO_RESOURCE:
        return StoreResourceError(f"{text}: {_NO_RESOURCE[code]}; nothing changed, try again", path=path)
    return StoreIOError(f"{text}", path=path)


def link_refused(path: Path | str) -> StorePermissionError:
    """The error for a symbolic link where a store has a file or a folder."""
    return StorePermissionError(
        "a symbolic link stands in the place of a store's file or folder; remove it, or put what it leads to there",
        path=path,
    )


def _link_in(path: Path) -> Path | None:
    """The first part of a path that is a symbolic link."""
    return next((part for part in [*reversed(path.parents), path] if part.is_symlink()), None)


def _open_folder(path: Path) -> int:
    """A descriptor that only names a folder, reached without following a link. Raises OSError."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    how = _OpenHow(flags, 0, _RESOLVE_NO_SYMLINKS)
    fd: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_long(_AT_FDCWD),
        os.fsencode(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or a sandbox that does not know the call
        return _walk_to_folder(path)
    raise OSError(code, os.strerror(code), str(path))


def _walk_to_folder(path: Path) -> int:
    """The same, one part after the other."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path.anchor or ".", flags)
    for name in path.parts[1:] if path.anchor else path.parts:
        try:
            step = os.open(name, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = step
    return fd


def _open(path: Path, flags: int) -> int:
    """`open_file` with the system's own errors."""
    folder = _open_folder(path.parent)
    try:
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        shared = bool(flags & os.O_CREAT) and is_shared(os.fstat(folder))
        fd = os.open(path.name or ".", flags, SHARED_FILE_MODE if shared else FILE_MODE, dir_fd=folder)
    finally:
        os.close(folder)
    if shared:
        try:
            status = os.fstat(fd)
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != SHARED_FILE_MODE:
                os.fchmod(fd, SHARED_FILE_MODE)  # whatever the umask is
        except BaseException:
            os.close(fd)
            raise
    return fd


def is_shared(folder: os.stat_result) -> bool:
    """Whether what is made in a folder is for its group too."""
    bits = stat.S_ISGID | stat.S_IWGRP
    return folder.st_mode & bits == bits


def open_file(path: Path, flags: int) -> int:
    """A descriptor that is closed on exec, opened without following a link."""
    with translated(path):
        return _open(path, flags)


def map_file(
    path: Path,
    base: int,
    length: int,
    *,
    writable: bool = True,
    private: bool = False,
    keep_descriptor: bool = True,
) -> MappedFile:
    """`MappedFile.of` a file opened without following a link. Raises OSError; StoreError when the file has another length."""
    fd = _open(path, os.O_RDWR if writable and not private else os.O_RDONLY)
    return MappedFile.of(
        fd, path, base, length, writable=writable, private=private, keep_descriptor=keep_descriptor
    )


def entries(path: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, sorted by name; nothing where there is no folder. A link in it is refused."""
    with translated(path):
        try:
            os.close(_open_folder(path))
            found = sorted(os.scandir(path), key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
    for entry in found:
        if entry.is_symlink():
            raise link_refused(entry.path)
    return found


def size_of(entry: os.DirEntry[str]) -> int | None:
    """The length of a file that a folder was listed with; None when another process took it away since."""
    with translated(entry.path):
        try:
            return entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """`open_file` for the length of a with block."""
    fd = open_file(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(path: Path) -> bytes:
    """The whole file."""
    with opened(path) as fd, translated(path):
        return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))


def read_if_there(path: Path) -> bytes | None:
    """The whole file, None where there is none: it may go away between a look and a read."""
    try:
        return read_all(path)
    except StoreIOError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def pread_full(fd: int, offset: int, count: int, path: Path | str = "") -> bytes:
    """`count` bytes at `offset`; fewer only at the end of the file. A bad sector is a StoreIOError, not a signal."""
    parts: list[bytes] = []
    with translated(path):
        while count > 0:
            part = os.pread(fd, count, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def sync_directory(path: Path) -> None:
    """Makes names made or removed in `path` durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        sync(fd, path)


def sync(fd: int, path: Path | str = "", *, data_only: bool = False, named: bool = True) -> None:
    """Makes what was written to an open file durable. Raises SyncFailedError.

    A file that has no name yet (`named=False`) is thrown away when its sync fails: for want of space or memory that is an error
    of the call alone.
    """
    with translated(path):
        try:
            os.fdatasync(fd) if data_only else os.fsync(fd)
        except OSError as error:
            if not named and error.errno != errno.EIO:
                raise
            raise SyncFailedError.of(error.errno or errno.EIO, path) from error


def make_directory(path: Path, *, durable: bool = True) -> None:
    """`path` and its parents, each name durable unless that is done later, with the access of the folder that each is made in."""
    if _is_folder(path):
        return
    make_directory(path.parent, durable=durable)
    with translated(path), contextlib.suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY_MODE)
        if is_shared(path.parent.stat()):
            path.chmod(SHARED_DIRECTORY_MODE)
    if durable:
        sync_directory(path.parent)


def make_root(path: Path, group: int | None) -> None:
    """`path` and its parents durably, for the owner alone or for a group too."""
    if _is_folder(path):
        return
    make_root(path.parent, group)
    with translated(path), contextlib.suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY_MODE)
        if group is not None:
            share(path, group)
    sync_directory(path.parent)


def share(folder: Path, group: int) -> None:
    """Gives a group access to a folder, and to what is made in it from now on."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, translated(folder):
        os.fchown(fd, -1, group)
        os.fchmod(fd, SHARED_DIRECTORY_MODE)


def _is_folder(path: Path) -> bool:
    """Whether there is a folder. A link on the way, or something else in its place, is refused."""
    with translated(path):
        try:
            os.close(_open_folder(path))
        except FileNotFoundError:
            return False
    return True


def temporary_path(root: Path) -> Path:
    """A new name in the store's tmp folder: a strange name beside the log would stop RocketMQ's load."""
    make_directory(root / TMP_DIRECTORY)
    return root / TMP_DIRECTORY / uuid.uuid4().hex


def _give_up(temporary: Path) -> None:
    """After an error, which is what is told. On a failing disk the file may stay; a temporary one goes at the next load."""
    with contextlib.suppress(OSError):
        temporary.unlink()


def write_whole(root: Path, path: Path, data: bytes | memoryview, *, keep_last: bool = True) -> None:
    """Writes a small file whole or not at all; the last good copy stays beside it as NAME.bak."""
    make_directory(path.parent)
    temporary = temporary_path(root)
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd, translated(path):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            sync(fd, path, named=False)
        failpoint("files.written")
        with translated(path):
            if keep_last and path.exists():
                backup = path.with_name(path.name + ".bak")
                with contextlib.suppress(FileNotFoundError):
                    backup.unlink()
                failpoint("files.backup_gone")
                os.link(path, backup, follow_symlinks=False)
            os.rename(temporary, path)
        failpoint("files.replaced")
    except BaseException:
        _give_up(temporary)
        raise
    sync_directory(path.parent)


def allocate(fd: int, begin: int, end: int, path: Path | str = "") -> None:
    """Reserves disk space for [begin, end) of a file and leaves its length alone."""
    if end <= begin:
        return
    length, offset = ctypes.c_int64(end - begin), ctypes.c_int64(begin)
    with translated(path):
        while _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, length):
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code), str(path))


def reserve(path: Path, length: int) -> None:
    """Makes `path`, an empty file that takes up `length` bytes of the disk. Raises StoreFullError."""
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        allocate(fd, 0, length, path)


def create_sized(
    root: Path, path: Path, length: int, allocated_bytes: int, *, replace: bool = False, durable: bool = True
) -> None:
    """Makes `path` with full `length`, its first `allocated_bytes` reserved, zero everywhere.

    The file gets its name only when all that is durable. Unless `replace`, it never replaces another: losing that race to
    another process is no error. A crash leaves at most a nameless file in tmp/, removed at the next load. Without `durable`
    a power cut may take the file away again until it and its folder are synced; a name that is there has its length all the
    same, because the file systems that we write to keep such changes in order.
    """
    make_directory(path.parent, durable=durable)
    temporary, named = temporary_path(root), True
    try:
        with opened(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd, translated(path):
            os.ftruncate(fd, length)
            allocate(fd, 0, min(allocated_bytes, length), path)
            if durable:
                sync(fd, path, named=False)
        failpoint("files.made")
        if replace:
            with translated(path):
                os.rename(temporary, path)
        else:
            try:
                rename_no_replace(temporary, path)
            except FileExistsError:
                named = False
                with translated(temporary):
                    temporary.unlink()
        failpoint("files.named")
    except BaseException:
        _give_up(temporary)
        raise
    if durable:
        try:
            sync_directory(path.parent)
        except BaseException:
            if named:
                _give_up(path)  # found there later, its name would be taken for durable
            raise


def rename_no_replace(source: Path, target: Path) -> None:
    """renameat2 with RENAME_NOREPLACE: FileExistsError when `target` is there."""
    names = os.fsencode(source), os.fsencode(target)
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            raise FileExistsError(code, os.strerror(code), str(target))
        with translated(target):
            raise OSError(code, os.strerror(code), str(target))


def remove(path: Path, *, durable: bool = True) -> None:
    """Unlinks `path`, durably unless a power cut may bring it back; one that is gone already is fine."""
    with translated(path), contextlib.suppress(FileNotFoundError):
        path.unlink()
    if durable:
        sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Removes an empty directory durably; one that is gone already is fine."""
    with translated(path), contextlib.suppress(FileNotFoundError):
        path.rmdir()
    sync_directory(path.parent)


def remove_below(folder: Path) -> None:
    """Removes everything in a folder durably, the deepest first; links are removed, not followed. One that is not there is fine."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            remove_directory(path)
        else:
            remove(path)


def remove_tree(path: Path) -> None:
    """Removes a folder with all that is in it, durably; one that is gone already is fine."""
    if _is_folder(path):
        remove_below(path)
        remove_directory(path)


def read_back(path: Path) -> bytes:
    """The whole file as the disk has it: the page cache lets it go first, where the file system can do that."""
    with opened(path) as fd, translated(path):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return read_all(path)


def clear_temporaries(root: Path) -> None:
    """Removes what a crash left in tmp/. Only for whoever is alone in the store."""
    for entry in entries(root / TMP_DIRECTORY):
        with translated(entry.path):
            os.unlink(entry.path)


def free_space(path: Path) -> tuple[int, int]:
    """(free, total) bytes of the filesystem that holds `path`, for an unprivileged writer."""
    with translated(path):
        status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


# ------------------------------------------------------------------------------- ranges: recovery, verify, scrub


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


def data_ranges(fd: int, begin: int, end: int, path: Path | str = "") -> list[tuple[int, int]]:
    """The parts of [begin, end) that are not holes in the file; what lies between them reads as zero."""
    found: list[tuple[int, int]] = []
    with translated(path):
        while begin < end:
            try:
                data = os.lseek(fd, begin, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                    return [(begin, end)]
                raise
            if data >= end:
                break
            hole = min(os.lseek(fd, data, os.SEEK_HOLE), end)
            found.append((data, hole))
            begin = hole
    return found


def write_at(path: Path, pieces: list[tuple[int, bytes]]) -> None:
    """Overwrites (offset, bytes) of a file in place; all of it is durable afterwards."""
    with opened(path, os.O_WRONLY) as fd, translated(path):
        for offset, data in pieces:
            view = memoryview(data)
            while view:
                count = os.pwrite(fd, view, offset)
                view, offset = view[count:], offset + count
        sync(fd, path, data_only=True)


def length_of(fd: int, path: Path | str = "") -> int:
    """Length of an open file."""
    with translated(path):
        return os.fstat(fd).st_size


def zero_range(path: Path, begin: int, end: int) -> None:
    """Makes [begin, end) of a file zero, durably; what is a hole stays one."""
    zeros = bytes(1 << 20)
    with opened(path, os.O_RDWR) as fd:
        for data, hole in data_ranges(fd, begin, end, path):
            with translated(path):
                while data < hole:
                    data += os.pwrite(fd, memoryview(zeros)[: hole - data], data)
        sync(fd, path, data_only=True)


def copy_ranges(root: Path, pieces: list[tuple[Path, int, int]], target: Path) -> None:
    """Makes `target` of [begin, end) of each file in turn, whole and durable or not at all; FileExistsError when it is there.

    What is a hole in a source stays one.
    """
    make_directory(target.parent)
    temporary = temporary_path(root)
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as out:
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
        rename_no_replace(temporary, target)
    except BaseException:
        _give_up(temporary)
        raise
    sync_directory(target.parent)


def same_bytes(pieces: list[tuple[Path, int, int]], target: Path) -> bool:
    """Whether `target` is what `copy_ranges` would make."""
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


def move(source: Path, target: Path) -> None:
    """Renames durably, never over another file (FileExistsError)."""
    make_directory(target.parent)
    rename_no_replace(source, target)
    sync_directory(target.parent)
    sync_directory(source.parent)


def extend(path: Path, length: int) -> None:
    """Makes a file that is too short `length` bytes long, durably; the new part reads as zero."""
    with opened(path, os.O_RDWR) as fd, translated(path):
        if os.fstat(fd).st_size < length:
            os.ftruncate(fd, length)
            sync(fd, path)
