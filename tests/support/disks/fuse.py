"""A device whose files are a Tree behind the kernel's FUSE protocol (include/uapi/linux/fuse.h, version 7.31), with a
switch for its power: LazyFS's model, for any place of a run.

Nothing but /dev/fuse and mount(2) is used: bindings of libfuse speak of paths, but a mapped file that was unlinked or
renamed has none, and those that speak of nodes leave out fallocate. One thread answers; a request is done before the
next one is read, and what is answered after the power went is an error. So an answer to FSYNC is a promise.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import stat
import struct
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tests.support.disks.unsynced import PAGE_BYTES, Node, Tree

DEVICE = "/dev/fuse"
VERSION = (7, 31)
WRITE_MAX = 1 << 17
VALID_S = 3600  # nobody but the kernel changes anything
BLOCKS = 1 << 20

# Requests, by their numbers in the protocol.
LOOKUP, FORGET, GETATTR, SETATTR, MKNOD, MKDIR, UNLINK, RMDIR = 1, 2, 3, 4, 8, 9, 10, 11
RENAME, LINK, READ, WRITE, STATFS, FSYNC, INIT = 12, 13, 15, 16, 17, 20, 26
OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, BATCH_FORGET, FALLOCATE, RENAME2 = 27, 28, 29, 30, 42, 43, 45
UNANSWERED = (FORGET, BATCH_FORGET)
CHANGES = (SETATTR, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, WRITE, FSYNC, FSYNCDIR, FALLOCATE, RENAME2)

ASYNC_READ, BIG_WRITES, PARALLEL_DIROPS, MAX_PAGES = 1 << 0, 1 << 5, 1 << 18, 1 << 22
HAS_MODE, HAS_UID, HAS_GID, HAS_SIZE = 1 << 0, 1 << 1, 1 << 2, 1 << 3
NO_REPLACE, KEEP_SIZE = 1, 1

HEAD_IN = struct.Struct("IIQQIIII")  # length, request, unique, node, uid, gid, pid, -
HEAD_OUT = struct.Struct("IiQ")
ATTRIBUTES = struct.Struct("QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("QQQQII")
SET_ATTRIBUTES = struct.Struct("IIQQQQQQIIIIIIII")
ENTRY_OF_FOLDER = struct.Struct("QQII")
TRANSFER = struct.Struct("QQIIQII")  # of READ and WRITE: handle, offset, size, ...


class Device:
    """The files, and who serves them. Lives in a process of its own: one that used what it serves would wait for
    itself."""

    def __init__(self, *, ignores_sync: bool = False) -> None:
        self._tree, self._ignores_sync = Tree(), ignores_sync
        self._lock = threading.Lock()
        self._off, self._until_off, self._lives = False, 0, 0
        self._tell = -1
        self._listings: dict[int, list[tuple[str, Node]]] = {}
        self._answers: dict[int, Callable[[Node, memoryview, tuple[int, int]], bytes]] = {
            LOOKUP: self._lookup,
            GETATTR: lambda node, _, __: struct.pack("QII", VALID_S, 0, 0) + _attributes(node),
            SETATTR: self._set_attributes,
            MKNOD: self._make_file,
            MKDIR: self._make_folder,
            UNLINK: lambda node, data, _: self._remove(node, data, is_folder=False),
            RMDIR: lambda node, data, _: self._remove(node, data, is_folder=True),
            RENAME: lambda node, data, _: self._rename(node, data, "Q"),
            RENAME2: lambda node, data, _: self._rename(node, data, "QII"),
            LINK: self._link,
            READ: self._read,
            WRITE: self._write,
            STATFS: self._free_space,
            FSYNC: self._sync,
            FSYNCDIR: self._sync,
            INIT: self._begin,
            OPENDIR: self._open_folder,
            READDIR: self._read_folder,
            RELEASEDIR: self._close_folder,
            FALLOCATE: self._allocate,
        }

    # ------------------------------------------------------------------------------------------------------- power

    def cut(self) -> None:
        """From now on nothing is done any more."""
        with self._lock:
            self._off = True

    def cut_at(self, request: int, tell: int) -> None:
        """The same, at the n-th request from now that changes anything (0: not at all any more); a byte comes out of
        `tell` then.

        A sync at which it happens is not done; another change may be left or not, as if it had been done before.
        """
        with self._lock:
            self._until_off, self._tell = request, tell

    def power_on(self, seed: int, how: str) -> dict[str, int]:
        """After everything was unmounted: forgets what was not synced. Gives how much."""
        with self._lock:
            self._off, self._until_off = False, 0
            self._lives += 1
            self._listings.clear()
            return asdict(self._tree.forget(random.Random(seed), how))

    def copy_left(self, folder: str) -> None:
        """Copies what was left when the power came back, before anybody repaired it."""
        with self._lock:
            for file in self._tree.left:
                path = Path(folder + file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    copy.truncate(file.size)
                    for number, page in file.pages.items():
                        copy.seek(number * PAGE_BYTES)
                        copy.write(page[: file.size - number * PAGE_BYTES])

    # ----------------------------------------------------------------------------------------------------- serving

    def mount(self, folder: str) -> None:
        """Returns when the files are there; they are served until somebody unmounts them."""
        fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},"
        options += "allow_other,default_permissions"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"unsynced", os.fsencode(folder), b"fuse", 0, options.encode()):
            code = ctypes.get_errno()
            os.close(fd)
            raise OSError(code, os.strerror(code), f"mount {folder}")
        threading.Thread(target=self._serve, args=(fd, self._lives), daemon=True).start()

    def _serve(self, fd: int, life: int) -> None:
        """A disk that was mounted in another run, and is in use still, is without power for good."""
        buffer = memoryview(bytearray(WRITE_MAX + PAGE_BYTES))
        try:
            while True:
                try:
                    size = os.readv(fd, [buffer])
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return  # unmounted
                    if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue  # the request was taken back
                    raise
                self._answer(fd, life, buffer[:size])
        finally:
            os.close(fd)

    def _answer(self, fd: int, life: int, request: memoryview) -> None:
        _, what, unique, node, uid, gid, _, _ = HEAD_IN.unpack_from(request)
        if what in UNANSWERED:
            return
        code, data = 0, b""
        try:
            with self._lock:
                if life != self._lives:
                    raise OSError(errno.EIO, "the power went")
                data = self._do(what, node, request[HEAD_IN.size :], (uid, gid))
        except OSError as error:
            code = error.errno or errno.EIO
        try:
            os.writev(fd, [HEAD_OUT.pack(HEAD_OUT.size + len(data), -code, unique), data])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits for it any more
                raise

    def _do(self, what: int, number: int, data: memoryview, who: tuple[int, int]) -> bytes:
        last = False
        if what in CHANGES and self._until_off and not self._off:
            self._until_off -= 1
            last = not self._until_off
        try:
            if self._off or (last and what in (FSYNC, FSYNCDIR)):
                answer = b""
            elif what not in self._answers:
                raise OSError(errno.ENOSYS, "no such request")
            else:
                answer = self._answers[what](self._node(number), data, who)
        finally:
            if last:  # also with a request that fails
                self._off = True
                os.write(self._tell, b"!")
        if self._off:
            raise OSError(errno.EIO, "the power is off")
        return answer

    def _node(self, number: int) -> Node:
        """Requests that concern no file name node 0."""
        return self._tree.nodes[number or self._tree.root.number]

    # ---------------------------------------------------------------------------------------------------- requests

    def _begin(self, _: Node, data: memoryview, __: tuple[int, int]) -> bytes:
        major, _minor, readahead, flags = struct.unpack_from("IIII", data)
        assert major == VERSION[0], f"the kernel speaks version {major} of FUSE"
        flags &= ASYNC_READ | BIG_WRITES | PARALLEL_DIROPS | MAX_PAGES
        return struct.pack(
            "IIIIHHIIHH32x", *VERSION, readahead, flags, 64, 48, WRITE_MAX, 1, WRITE_MAX // PAGE_BYTES, 0
        )

    def _lookup(self, folder: Node, data: memoryview, _: tuple[int, int]) -> bytes:
        (name,) = _names(data)
        return _entry(self._tree.find(folder, name))

    def _set_attributes(self, node: Node, data: memoryview, _: tuple[int, int]) -> bytes:
        which, _, _, size, *_, mode, _, uid, gid, _ = SET_ATTRIBUTES.unpack_from(data)
        if which & HAS_SIZE and size != node.size:
            self._tree.resize(node, size)
        if which & (HAS_MODE | HAS_UID | HAS_GID):
            self._tree.own(
                node,
                mode=stat.S_IFMT(node.mode) | stat.S_IMODE(mode) if which & HAS_MODE else node.mode,
                uid=uid if which & HAS_UID else node.uid,
                gid=gid if which & HAS_GID else node.gid,
            )
        return struct.pack("QII", VALID_S, 0, 0) + _attributes(node)

    def _make_file(self, folder: Node, data: memoryview, who: tuple[int, int]) -> bytes:
        mode, _, _, _ = struct.unpack_from("IIII", data)
        (name,) = _names(data[16:])
        return _entry(self._tree.make(folder, name, mode, *who))

    def _make_folder(self, folder: Node, data: memoryview, who: tuple[int, int]) -> bytes:
        mode, _ = struct.unpack_from("II", data)
        (name,) = _names(data[8:])
        return _entry(self._tree.make(folder, name, stat.S_IFDIR | mode, *who))

    def _remove(self, folder: Node, data: memoryview, *, is_folder: bool) -> bytes:
        (name,) = _names(data)
        self._tree.remove(folder, name, is_folder=is_folder)
        return b""

    def _rename(self, folder: Node, data: memoryview, head: str) -> bytes:
        to, *flags = struct.unpack_from(head, data)
        name, new = _names(data[struct.calcsize(head) :])
        if flags and flags[0] & ~NO_REPLACE:
            raise OSError(errno.EINVAL, "no such way to rename")
        self._tree.rename(folder, name, self._node(to), new, replace=not any(flags))
        return b""

    def _link(self, folder: Node, data: memoryview, _: tuple[int, int]) -> bytes:
        (number,) = struct.unpack_from("Q", data)
        (name,) = _names(data[8:])
        node = self._node(number)
        self._tree.link(node, folder, name)
        return _entry(node)

    def _read(self, node: Node, data: memoryview, _: tuple[int, int]) -> bytes:
        _, at, size, *_ = TRANSFER.unpack_from(data)
        return self._tree.read(node, at, size)

    def _write(self, node: Node, data: memoryview, _: tuple[int, int]) -> bytes:
        _, at, size, *_ = TRANSFER.unpack_from(data)
        self._tree.write(node, at, bytes(data[TRANSFER.size : TRANSFER.size + size]))
        return struct.pack("II", size, 0)

    def _sync(self, node: Node, _: memoryview, __: tuple[int, int]) -> bytes:
        if not self._ignores_sync:
            self._tree.sync(node)
        return b""

    def _allocate(self, node: Node, data: memoryview, _: tuple[int, int]) -> bytes:
        _, at, size, mode, _ = struct.unpack_from("QQQII", data)
        if mode & ~KEEP_SIZE:
            raise OSError(errno.EOPNOTSUPP, "only allocates")
        if not mode & KEEP_SIZE and at + size > node.size:
            self._tree.resize(node, at + size)
        return b""

    def _free_space(self, _: Node, __: memoryview, ___: tuple[int, int]) -> bytes:
        return struct.pack(
            "QQQQQIIII24x", BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, PAGE_BYTES, 255, PAGE_BYTES, 0
        )

    def _open_folder(self, node: Node, _: memoryview, __: tuple[int, int]) -> bytes:
        handle = max(self._listings, default=0) + 1
        self._listings[handle] = [(".", node), ("..", node), *node.entries.items()]
        return struct.pack("QII", handle, 0, 0)

    def _read_folder(self, _: Node, data: memoryview, __: tuple[int, int]) -> bytes:
        handle, at, size, *_ = TRANSFER.unpack_from(data)
        found = bytearray()
        for place, (text, node) in enumerate(self._listings[handle][at:], at + 1):
            name = os.fsencode(text)
            entry = ENTRY_OF_FOLDER.pack(node.number, place, len(name), stat.S_IFMT(node.mode) >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return bytes(found)

    def _close_folder(self, _: Node, data: memoryview, __: tuple[int, int]) -> bytes:
        (handle,) = struct.unpack_from("Q", data)
        self._listings.pop(handle, None)  # none is left after the power was off
        return b""


def _names(data: memoryview) -> list[str]:
    return [os.fsdecode(name) for name in bytes(data).rstrip(b"\0").split(b"\0")]


def _entry(node: Node) -> bytes:
    return ENTRY.pack(node.number, 0, VALID_S, VALID_S, 0, 0) + _attributes(node)


def _attributes(node: Node) -> bytes:
    seconds, rest = divmod(node.changed_ns, 1_000_000_000)
    return ATTRIBUTES.pack(
        node.number, node.size, len(node.pages) * (PAGE_BYTES // 512), seconds, seconds, seconds, rest, rest, rest,
        node.mode, node.links, node.uid, node.gid, 0, PAGE_BYTES, 0,
    )  # fmt: skip
