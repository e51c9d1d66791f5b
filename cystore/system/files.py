"""The only callers of open, fsync, rename, unlink and fallocate on the Python side.

No call follows a symbolic link, neither in the last part of a path nor before it: a store's root is resolved once,
when the store is opened. A new file or folder gets the access of its folder: for the owner alone, or for a group
too (`share`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cystore._native.memory.mapping import MappedFile
from cystore._native.system.descriptor import Descriptor, Temporary, open_in
from cystore._native.system.failpoint import failpoint
from cystore._native.system.pages import write_zeros
from cystore.errors import StoreFormatError, StoreIOError, SyncFailedError
from cystore.system.folders import LIBC, check_place, inside, open_folder
from cystore.system.os_errors import is_missing, not_regular, sorted_error
from cystore.system.os_errors import link_refused as link_refused
from cystore.system.os_errors import translated as translated

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
SHARED_FILE_MODE = 0o660
SHARED_DIRECTORY_MODE = 0o2770  # with the set-group-id bit, new files inside belong to the group too
TMP_DIRECTORY = "tmp"
SMALL_FILE_BYTES_MAX = 256 * 1024 * 1024  # limit for files that are read as a whole
_TEMPORARY = re.compile(r"[0-9a-f]{32}")

BLOCK_BYTES = 512  # of st_blocks
_FALLOC_FL_KEEP_SIZE = 1
_RENAME_NOREPLACE = 1


def _open(path: Path, flags: int) -> Descriptor:
    """`open_file` that raises the system's own errors."""
    with inside(path) as (folder, name):
        # Without O_NONBLOCK, the open of a FIFO in place of a file would wait for its other end.
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        shared = bool(flags & os.O_CREAT) and is_shared(os.fstat(folder))
        opened = open_in(folder, name, flags, SHARED_FILE_MODE if shared else FILE_MODE)
    try:
        mode, owner = opened.kind()
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise not_regular(path)
        if shared and owner == os.geteuid() and stat.S_IMODE(mode) != SHARED_FILE_MODE:
            os.fchmod(opened.fd, SHARED_FILE_MODE)  # whatever the umask is
    except BaseException:
        opened.close()
        raise
    return opened


def is_shared(folder: os.stat_result) -> bool:
    """Whether new files in a folder are for its group too."""
    bits = stat.S_ISGID | stat.S_IWGRP
    return folder.st_mode & bits == bits


@contextmanager
def access_of(folder: Path) -> Iterator[int]:
    """In the block, what other libraries and new processes make has the access of the folder, as our own files have.
    Yields the umask for it. The umask is the process's, so other threads make nothing for others meanwhile either."""
    with translated(folder):
        umask = 0o007 if is_shared(os.stat(folder)) else 0o077
    before = os.umask(umask)
    try:
        yield umask
    finally:
        os.umask(before)


def open_file(path: Path, flags: int) -> Descriptor:
    """A descriptor that is closed on exec, opened without following a link. It is closed with its object."""
    with translated(path):
        return _open(path, flags)


def map_file(
    path: Path, base: int, length: int, *, writable: bool = True, private: bool = False, sealed: bool = False
) -> MappedFile:
    """`MappedFile.of` a file that is opened without following a link. Raises OSError, or StoreError if the file has
    another length.

    No process writes to a `sealed` file any more, and a private mapping belongs to one process. Holes of such files
    (a sparse copy has them) are mapped as memory: a read of a hole through an ordinary mapping takes space on some
    file systems, and kills the process if there is none.
    """
    with _open(path, os.O_RDWR if writable and not private and not sealed else os.O_RDONLY) as fd:
        if (private or sealed) and os.fstat(fd).st_blocks * BLOCK_BYTES < length:
            return MappedFile.of_sparse(
                fd, path, base, length, data_ranges(fd, 0, length, path), private=private
            )
        return MappedFile.of(fd, path, base, length, writable=writable and not sealed, private=private)


def is_at(path: Path, file: MappedFile) -> bool:
    """Whether a path still names a mapped file: no process unlinked or replaced it."""
    with translated(path):
        try:
            with inside(path) as (folder, name):
                return file.is_at(folder, name)
        except FileNotFoundError:
            return False


class Entry:
    """One name in a folder: `name`, `path`, and its type. `status` is None if it was not asked for."""

    def __init__(self, folder: Path, found: os.DirEntry[str], status: os.stat_result | None) -> None:
        self.name, self.status, self._folder = found.name, status, folder
        self._is_file = found.is_file(follow_symlinks=False)
        self._is_folder = found.is_dir(follow_symlinks=False)

    @property
    def path(self) -> Path:
        """The whole path."""
        return self._folder / self.name

    def is_file(self, *, follow_symlinks: bool = False) -> bool:
        """Whether it is a regular file; a link never is."""
        return self._is_file

    def is_dir(self, *, follow_symlinks: bool = False) -> bool:
        """Whether it is a folder; a link never is."""
        return self._is_folder

    def stat(self, *, follow_symlinks: bool = False) -> os.stat_result:
        """The status from the listing, otherwise a new one. Raises OSError."""
        return self.status or self.path.stat(follow_symlinks=False)


def entries(path: Path, *, sizes: bool = False) -> list[Entry]:
    """The entries of a folder, sorted by name; empty if there is no folder. Refuses a link in it. With `sizes` each
    entry has its status, and files that are removed meanwhile are left out."""
    found: list[Entry] = []
    with translated(path):
        try:
            folder = _open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        with folder as fd, os.scandir(fd) as listed:
            for each in sorted(listed, key=lambda entry: entry.name):
                if each.is_symlink():
                    raise link_refused(path / each.name)
                try:
                    status = each.stat(follow_symlinks=False) if sizes else None
                except FileNotFoundError:
                    continue
                found.append(Entry(path, each, status))
    return found


def size_of(entry: Entry) -> int | None:
    """The length of a file that was listed with `sizes`."""
    return None if entry.status is None else entry.status.st_size


def names(path: Path) -> set[str]:
    """The names in a folder."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd, translated(path):
        return set(os.listdir(fd))


def opened(path: Path, flags: int = os.O_RDONLY) -> Descriptor:
    """`open_file` for a with block; the block gets the descriptor's number."""
    return open_file(path, flags)


def read_all(path: Path, *, most: int | None = None, first: int | None = None) -> bytes:
    """The whole file, or its `first` bytes. Refuses a file of more than `most` bytes: it is foreign, and might not
    fit into memory."""
    with opened(path) as fd, translated(path):
        length = os.fstat(fd).st_size
        if first is not None:
            return pread_full(fd, 0, min(first, length), path)
        if most is not None and length > most:
            raise StoreFormatError(
                f"a file of {length} bytes is not a file of cystore's; move it away", path=path
            )
        return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))


def read_if_there(path: Path, *, first: int | None = None) -> bytes | None:
    """A whole small file, or its `first` bytes; None if it is missing. It may be removed between a check and a read."""
    try:
        return read_all(path, most=SMALL_FILE_BYTES_MAX, first=first)
    except StoreIOError as error:
        if is_missing(error):
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
    """Makes new and removed names in `path` durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        sync(fd, path)


def sync(fd: int, path: Path | str = "", *, data_only: bool = False, named: bool = True) -> None:
    """Makes the content of an open file durable. Raises SyncFailedError.

    The caller discards a nameless file (`named=False`) after a failed sync, so a lack of space fails only this call.
    """
    with translated(path):
        try:
            os.fdatasync(fd) if data_only else os.fsync(fd)
        except OSError as error:
            if not named and error.errno != errno.EIO:
                raise
            raise SyncFailedError.of(error.errno or errno.EIO, path) from error


def make_directory(path: Path, *, durable: bool = True) -> None:
    """Makes `path` and its parents; each gets the access of its folder. With `durable=False` the caller syncs the
    names later."""
    if _is_folder(path):
        return
    with translated(path):
        try:
            _make_in_folder(path)
        except FileNotFoundError:
            make_directory(path.parent, durable=durable)
            _make_in_folder(path)
    if durable:
        sync_directory(path.parent)


def _make_in_folder(path: Path) -> None:
    """Makes a folder inside one that exists. Raises OSError."""
    with inside(path) as (folder, name), contextlib.suppress(FileExistsError):
        os.mkdir(name, DIRECTORY_MODE, dir_fd=folder)
        if is_shared(os.fstat(folder)):
            os.chmod(name, SHARED_DIRECTORY_MODE, dir_fd=folder)


def make_root(path: Path, group: int | None) -> None:
    """Makes `path` and its parents durably, for the owner alone or for a group too."""
    if _is_folder(path):
        return
    make_root(path.parent, group)
    with translated(path), contextlib.suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY_MODE)
        if group is not None:
            share(path, group)
    sync_directory(path.parent)


def share(folder: Path, group: int) -> None:
    """Gives a group access to a folder, and to later files inside."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, translated(folder):
        os.fchown(fd, -1, group)
        os.fchmod(fd, SHARED_DIRECTORY_MODE)


def _is_folder(path: Path) -> bool:
    """Whether the folder exists. Refuses a link in the path, and another kind of file in its place."""
    with translated(path):
        try:
            open_folder(path).close()
        except FileNotFoundError:
            return False
    return True


def temporary(root: Path) -> Temporary:
    """A new name in the store's tmp folder: an unknown name beside the log would stop RocketMQ's load. The with block
    gets its path; when the block ends, no file has that name any more. Raises StoreMovedError."""
    check_place(root)
    folder = root / TMP_DIRECTORY
    name = os.urandom(16).hex()
    with translated(folder):
        try:
            opened_folder = open_folder(folder)
        except FileNotFoundError:
            make_directory(folder)
            opened_folder = open_folder(folder)
        return Temporary(opened_folder, name, folder / name)


def opened_draft(draft: Path, path: Path) -> Descriptor:
    """A new file with the name `draft`, for a with block. An error names `path`, which will be its name: so the same
    error has the same text at the next try."""
    with translated(path):
        return _open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def _give_up(path: Path) -> None:
    """Removes a file after an error that the caller raises. On a failing disk the file may stay."""
    with contextlib.suppress(OSError):
        _unlink(path)


def _unlink(path: Path) -> None:
    with inside(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def _rename(source: Path, target: Path) -> None:
    with inside(source) as (from_folder, from_name), inside(target) as (to_folder, to_name):
        os.rename(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)


def write_whole(root: Path, path: Path, data: bytes | memoryview, *, keep_last: bool = True) -> None:
    """Writes a small file whole or not at all; the last good copy stays beside it as NAME.bak."""
    make_directory(path.parent)
    with temporary(root) as draft:
        with opened_draft(draft, path) as fd, translated(path):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            sync(fd, path, named=False)
        failpoint("files.written")
        with translated(path):
            if keep_last and path.exists():
                backup = path.with_name(path.name + ".bak")
                with contextlib.suppress(FileNotFoundError):
                    _unlink(backup)
                failpoint("files.backup_gone")
                with inside(path) as (folder, name):
                    os.link(name, backup.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            _rename(draft, path)
        failpoint("files.replaced")
    sync_directory(path.parent)


def allocate(fd: int, begin: int, end: int, path: Path | str = "") -> None:
    """Reserves disk space for [begin, end) of a file; its length does not change."""
    if end <= begin:
        return
    length, offset = ctypes.c_int64(end - begin), ctypes.c_int64(begin)
    with translated(path):
        while LIBC.fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, length):
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code), str(path))


def write_zeros_ahead(fd: int, begin: int, end: int) -> None:
    """Writes zeros into [begin, end) of an open file, for a mapping that writes there in order. The caller holds the
    lock of those who write there, and nothing was written there yet. Where that fails, page faults bring the pages in
    later.

    The pages become 64 KiB long. A slow writer makes the disk write a page as a whole for each change, so they are not
    larger.
    """
    with contextlib.suppress(OSError):
        write_zeros(fd, begin, end)


class FileReplacedError(StoreIOError):
    """A mapped file has lost its name: another process removed or replaced the file."""


def allocate_mapped(
    path: Path, file: MappedFile, begin: int, end: int, zeros_from: int | None = None
) -> None:
    """`allocate` for a mapped file, then `write_zeros_ahead` from `zeros_from` on; opens the file for the call. Raises
    FileReplacedError if its path names another file now."""
    if end <= begin or file.in_memory:
        return
    try:
        with opened(path, os.O_RDWR) as fd:
            if is_at(path, file):
                allocate(fd, begin, end, path)
                if zeros_from is not None:
                    write_zeros_ahead(fd, zeros_from, end)
                return
    except StoreIOError as error:
        if not is_missing(error):
            raise
    raise FileReplacedError("the file was removed or replaced while it was mapped", path=path)


def reserve(path: Path, length: int) -> None:
    """Makes `path`, an empty file that occupies `length` bytes on the disk. Raises StoreFullError."""
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        allocate(fd, 0, length, path)


def create_sized(
    root: Path,
    path: Path,
    length: int,
    allocated_bytes: int,
    *,
    replace: bool = False,
    durable: bool = True,
    stays: bool = False,
) -> bool:
    """Makes `path` with its full `length`, all zeros, and reserves its first `allocated_bytes`. False if another
    process made it first.

    The file gets its name after its content is durable. Unless `replace` is set, it never replaces another file; if
    another process makes the file first, that is no error. A crash leaves at most a file in tmp/; the next load
    removes it. Without `durable`, a power cut may remove the file until it and its folder are synced. A file with
    this name always has its full length, because the supported file systems keep such changes in order. If the sync
    of the folder fails, the name is removed again, unless it `stays`: other processes may have mapped such a file, and
    sync its folder before they use it.
    """
    make_directory(path.parent, durable=durable)
    named = True
    with temporary(root) as draft:
        with opened_draft(draft, path) as fd, translated(path):
            os.ftruncate(fd, length)
            allocate(fd, 0, min(allocated_bytes, length), path)
            if durable:
                sync(fd, path, named=False)
        failpoint("files.made")
        if replace:
            with translated(path):
                _rename(draft, path)
        else:
            try:
                rename_no_replace(draft, path)
            except FileExistsError:
                named = False
        failpoint("files.named")
    if durable:
        try:
            sync_directory(path.parent)
        except BaseException:
            if named and not stays:
                _give_up(path)  # a later caller that found the name would take it for durable
            raise
    return named


def _renameat2(source: Path, target: Path, flag: int) -> None:
    """Raises OSError."""
    with inside(source) as (from_folder, from_name), inside(target) as (to_folder, to_name):
        names = os.fsencode(from_name), os.fsencode(to_name)
        if LIBC.renameat2(from_folder, names[0], to_folder, names[1], flag):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(target))


def rename_no_replace(source: Path, target: Path) -> None:
    """renameat2 with RENAME_NOREPLACE: FileExistsError if `target` exists."""
    try:
        _renameat2(source, target, _RENAME_NOREPLACE)
    except FileExistsError:
        raise
    except OSError as error:
        raise sorted_error(error, target) from error


def remove(path: Path, *, durable: bool = True) -> None:
    """Unlinks `path`. Without `durable`, a power cut may bring it back. A missing file is no error."""
    with translated(path), contextlib.suppress(FileNotFoundError):
        _unlink(path)
    if durable:
        sync_directory(path.parent)


def remove_directory(path: Path, *, durable: bool = True) -> None:
    """Removes an empty directory. Without `durable`, a power cut may bring it back. A missing one is no error."""
    with translated(path), contextlib.suppress(FileNotFoundError), inside(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)
    if durable:
        sync_directory(path.parent)


def remove_below(folder: Path) -> None:
    """Removes the content of a folder durably, the deepest names first; removes links and does not follow them. A
    missing folder is no error."""
    if not _is_folder(folder):
        return
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, translated(folder), os.scandir(fd) as listed:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
    for name, is_folder in sorted(found, reverse=True):
        if is_folder:
            remove_tree(folder / name)
        else:
            remove(folder / name)


def remove_tree(path: Path) -> None:
    """Removes a folder and its content durably. A missing folder is no error."""
    if _is_folder(path):
        remove_below(path)
        remove_directory(path)


def read_back(path: Path) -> bytes:
    """The whole file, read from the disk: asks the page cache to drop it first."""
    with opened(path) as fd, translated(path):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return read_all(path)


def clear_temporaries(root: Path) -> None:
    """Removes a crash's leftover files from tmp/. Foreign names, which `temporary` does not make, stay. Only for a
    process that has the store alone."""
    folder = root / TMP_DIRECTORY
    if not _is_folder(folder):
        return
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, translated(folder), os.scandir(fd) as listed:
        ours = [
            entry.name
            for entry in listed
            if _TEMPORARY.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)
        ]
    for name in ours:
        remove(folder / name, durable=False)


def free_space(path: Path) -> tuple[int, int]:
    """(free, total) bytes of the filesystem that holds `path`, for an unprivileged writer."""
    with translated(path):
        status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


# ------------------------------------------------------------------------------- ranges: recovery, verify, scrub


def move(source: Path, target: Path) -> None:
    """Renames durably, never over another file (FileExistsError)."""
    make_directory(target.parent)
    rename_no_replace(source, target)
    sync_directory(target.parent)
    sync_directory(source.parent)


def data_ranges(fd: int, begin: int, end: int, path: Path | str = "") -> list[tuple[int, int]]:
    """The parts of [begin, end) that are not holes in the file; holes read as zeros."""
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
