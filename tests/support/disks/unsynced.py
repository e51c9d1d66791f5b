"""Files that know what of them was synced, and forget the rest when their power goes: the model behind
tests/support/disks/fuse.py.

Names, lengths and owners change in one order, like in a journal: a sync of a file or folder keeps the last change of
it and all before; of those behind, power loss leaves the first few, never one without the ones before it. A new name
belongs to its folder alone: syncing the file does not keep it. Each page of a file is for itself: what is left is any
version that was written since the last sync, or the synced one, or a page torn between two of them at a sector.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PAGE_BYTES = 4096
SECTOR_BYTES = 512
NO_PAGE = bytes(PAGE_BYTES)
ROOT = 1

# The remains of the unsynced pages.
HOW = ("none", "all", "any", "torn")


@dataclass(eq=False)
class Node:
    """A file or a folder."""

    number: int
    mode: int
    uid: int
    gid: int
    links: int = 1
    size: int = 0
    changed_ns: int = field(default_factory=time.time_ns)
    last: int = 0  # the last change in the journal that is its own
    entries: dict[str, Node] = field(default_factory=dict)
    pages: dict[int, bytes] = field(default_factory=dict)
    unsynced: dict[int, list[bytes]] = field(default_factory=dict)  # versions of a page, the synced one first

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True)
class Left:
    """A file as it was when the power came back."""

    path: str
    size: int
    pages: dict[int, bytes]


@dataclass(frozen=True)
class Forgotten:
    """How much went with the power."""

    changes: int
    pages: int


class Tree:
    """All of it. Not for several threads at once; refusals are OSErrors."""

    def __init__(self) -> None:
        self.root = Node(ROOT, stat.S_IFDIR | 0o700, os.geteuid(), os.getegid())
        self.nodes = {ROOT: self.root}
        self._next = ROOT
        self._journal: list[Callable[[], None]] = []  # each takes its change back
        self._kept = 0  # so many changes were kept by a sync
        self.left: list[Left] = []

    def _changed(self, undo: Callable[[], None], *whose: Node) -> None:
        self._journal.append(undo)
        for node in whose:
            node.last = self._kept + len(self._journal)
            node.changed_ns = time.time_ns()

    # ------------------------------------------------------------------------------------------------------- names

    def find(self, folder: Node, name: str) -> Node:
        if name not in folder.entries:
            raise _refused(errno.ENOENT, name)
        return folder.entries[name]

    def make(self, folder: Node, name: str, mode: int, uid: int, gid: int) -> Node:
        if name in folder.entries:
            raise _refused(errno.EEXIST, name)
        if folder.mode & stat.S_ISGID:
            gid = folder.gid
            mode |= stat.S_ISGID if stat.S_ISDIR(mode) else 0
        self._next += 1
        node = self.nodes[self._next] = Node(self._next, mode, uid, gid)
        folder.entries[name] = node
        self._changed(lambda: _drop(folder, name), folder)
        return node

    def link(self, node: Node, folder: Node, name: str) -> None:
        if name in folder.entries:
            raise _refused(errno.EEXIST, name)
        folder.entries[name] = node
        node.links += 1

        def undo() -> None:
            _drop(folder, name)
            node.links -= 1

        self._changed(undo, folder)

    def remove(self, folder: Node, name: str, *, is_folder: bool) -> None:
        node = self.find(folder, name)
        if node.is_folder != is_folder:
            raise _refused(errno.EISDIR if node.is_folder else errno.ENOTDIR, name)
        if node.entries:
            raise _refused(errno.ENOTEMPTY, name)
        _drop(folder, name)
        node.links -= 1

        def undo() -> None:
            folder.entries[name] = node
            node.links += 1

        self._changed(undo, folder)

    def rename(self, folder: Node, name: str, to: Node, new: str, *, replace: bool) -> None:
        node, old = self.find(folder, name), to.entries.get(new)
        if old is node:
            return
        if old is not None:
            if not replace:
                raise _refused(errno.EEXIST, new)
            if old.is_folder or node.is_folder:
                raise _refused(errno.EISDIR, new)  # no store needs it
            old.links -= 1
        _drop(folder, name)
        to.entries[new] = node

        def undo() -> None:
            _drop(to, new)
            folder.entries[name] = node
            if old is not None:
                to.entries[new] = old
                old.links += 1

        self._changed(undo, folder, to)

    # ------------------------------------------------------------------------------------------------------- files

    def own(self, node: Node, *, mode: int, uid: int, gid: int) -> None:
        """Gives it other owners and another mode."""
        before = node.mode, node.uid, node.gid

        def undo() -> None:
            node.mode, node.uid, node.gid = before

        node.mode, node.uid, node.gid = mode, uid, gid
        self._changed(undo, node)

    def resize(self, node: Node, size: int) -> None:
        before, pages, unsynced = node.size, node.pages, node.unsynced

        def undo() -> None:
            node.size = before
            if size < before:
                node.pages, node.unsynced = pages, unsynced

        node.size = size
        if size < before:
            node.pages, node.unsynced = dict(pages), {n: list(versions) for n, versions in unsynced.items()}
            _trim(node)
        self._changed(undo, node)

    def read(self, node: Node, at: int, count: int) -> bytes:
        count = max(min(count, node.size - at), 0)
        first, skip = divmod(at, PAGE_BYTES)
        pages = range(first, -(-(at + count) // PAGE_BYTES))
        return b"".join([node.pages.get(n, NO_PAGE) for n in pages])[skip : skip + count]

    def write(self, node: Node, at: int, data: bytes) -> None:
        if at + len(data) > node.size:
            self.resize(node, at + len(data))
        done = 0
        while done < len(data):
            number, begin = divmod(at + done, PAGE_BYTES)
            part = data[done : done + PAGE_BYTES - begin]
            page = node.pages.get(number, NO_PAGE)
            node.unsynced.setdefault(number, [page])
            node.pages[number] = page[:begin] + part + page[begin + len(part) :]
            node.unsynced[number].append(node.pages[number])
            done += len(part)
        node.changed_ns = time.time_ns()

    def sync(self, node: Node) -> None:
        """The promise of fsync: the file's pages and length, or the folder's names."""
        node.unsynced.clear()
        if node.last > self._kept:
            del self._journal[: node.last - self._kept]
            self._kept = node.last

    # ------------------------------------------------------------------------------------------------------- power

    def forget(self, rng: random.Random, how: str) -> Forgotten:
        """The power goes and comes back."""
        assert how in HOW, how
        changes = rng.choice((0, len(self._journal), rng.randrange(len(self._journal) + 1)))
        for undo in reversed(self._journal[changes:]):
            undo()
        gone, pages = len(self._journal) - changes, 0
        self._journal, self._kept, self.nodes = [], 0, {}
        self.left = []
        for path, node in self._all("", self.root):
            self.nodes[node.number], node.last = node, 0
            for number, versions in node.unsynced.items():
                left = _left(rng, how, versions)
                pages += left != versions[-1]
                node.pages[number] = left
            node.unsynced.clear()
            _trim(node)
            if not node.is_folder:
                self.left.append(Left(path, node.size, dict(node.pages)))
        return Forgotten(gone, pages)

    def _all(self, path: str, node: Node) -> Iterator[tuple[str, Node]]:
        yield path, node
        for name, entry in node.entries.items():
            yield from self._all(f"{path}/{name}", entry)


def _refused(code: int, name: str) -> OSError:
    return OSError(code, os.strerror(code), name)


def _drop(folder: Node, name: str) -> None:
    del folder.entries[name]


def _trim(node: Node) -> None:
    """Nothing is behind the end."""
    last, used = divmod(node.size, PAGE_BYTES)
    for number in [n for n in node.pages if n > last or (n == last and not used)]:
        del node.pages[number]
        node.unsynced.pop(number, None)
    if last in node.pages:
        node.pages[last] = node.pages[last][:used].ljust(PAGE_BYTES, b"\0")


def _left(rng: random.Random, how: str, versions: list[bytes]) -> bytes:
    if how == "none":
        return versions[0]
    if how == "all":
        return versions[-1]
    number = rng.randrange(len(versions))
    if how == "any" or number == 0:
        return versions[number]
    old, new = versions[number - 1 : number + 1]
    sectors = range(0, PAGE_BYTES, SECTOR_BYTES)
    return b"".join([rng.choice((old, new))[at : at + SECTOR_BYTES] for at in sectors])
