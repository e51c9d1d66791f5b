"""The mappings that one process keeps of a store: those used last, within a budget of bytes and of mappings.

A mapping needs no descriptor. A reader or a view of a body that holds a MappedFile keeps its mapping; the budget counts
only mappings that are kept for later use.
"""

from __future__ import annotations

import itertools
import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import Drops
from cystore.config import StoreConfig
from cystore.system import files
from cystore.system.threads import os_threads

DEFAULT_MAP_COUNT = 65_530  # of Linux
_numbers = itertools.count()


def mapping_limit() -> int:
    """The most mappings of a store: half of those that a process may have (vm.max_map_count)."""
    data = files.read_if_there(Path("/proc/sys/vm/max_map_count"))
    return (int(data) if data else DEFAULT_MAP_COUNT) // 2


def address_limit(wanted: int) -> int:
    """The most mapped bytes of a store: a quarter of the process's limit, if it has one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, limit // 4)


class Mappings:
    """All mappings of one attachment, by (number of the queue of files, base). Safe for threads."""

    def __init__(self, max_bytes: int, max_count: int) -> None:
        self._max_bytes, self._max_count = max_bytes, max_count
        self._kept: OrderedDict[tuple[int, int], tuple[MappedFile, Callable[[MappedFile], bool]]] = (
            OrderedDict()
        )
        self._bytes = 0
        self.drops = Drops()
        self._lock = os_threads.RLock()

    @classmethod
    def of(cls, config: StoreConfig) -> Mappings:
        """The mappings of a store, within its settings and the limits of the system."""
        return cls(address_limit(config.mapped_bytes_max), mapping_limit())

    @staticmethod
    def number() -> int:
        """A number for one more queue of files."""
        return next(_numbers)

    @property
    def count(self) -> int:
        """The number of kept mappings."""
        return len(self._kept)

    def forked(self) -> None:
        """Makes the object usable in a forked child: a thread of the parent may have held the lock in the middle of a
        change."""
        self._lock = os_threads.RLock()
        self._bytes = sum(file.length for file, _ in self._kept.values())

    def get(self, queue: int, base: int) -> MappedFile | None:
        """A mapping that is kept, which becomes the one used last. Takes no lock: readers ask for each record."""
        found = self._kept.get((queue, base))
        if found is None:
            return None
        try:
            self._kept.move_to_end((queue, base))
        except KeyError:  # another thread dropped it meanwhile; the caller keeps it
            return found[0]
        return found[0]

    def keep(self, queue: int, file: MappedFile, needed: Callable[[MappedFile], bool]) -> None:
        """Keeps one more mapping, and drops those used longest ago. A `needed` mapping stays, whatever the budget
        is."""
        with self._lock:
            self._forget(queue, file.base)
            self._kept[queue, file.base] = file, needed
            self._bytes += file.length
            gone = self._over_budget()
        # Outside the lock: the end of a large mapping takes a while.
        if gone:
            self.drops.dropped()
        del gone

    def _over_budget(self) -> list[MappedFile]:
        gone: list[MappedFile] = []
        if self._fits():
            return gone
        for (queue, base), (file, needed) in self._entries()[:-1]:
            if self._fits():
                break
            if not needed(file):
                gone.append(file)
                self._forget(queue, base)
        return gone

    def _entries(self) -> list[tuple[tuple[int, int], tuple[MappedFile, Callable[[MappedFile], bool]]]]:
        """A copy: `get` takes no lock, and it moves entries."""
        while True:
            try:
                return list(self._kept.items())
            except RuntimeError:  # it moved one in the middle of the copy
                continue

    def _fits(self) -> bool:
        return self._bytes <= self._max_bytes and len(self._kept) <= self._max_count

    def _forget(self, queue: int, base: int) -> MappedFile | None:
        found = self._kept.pop((queue, base), None)
        if found is None:
            return None
        self._bytes -= found[0].length
        return found[0]

    def let_pages_go(self, current: MappedFile | None, end: int) -> None:
        """Takes the pages of all mappings out of this process's memory. Of the `current` segment it takes only those
        below the offset `end`, so that the next append meets no page fault."""
        files = [file for _, (file, _) in self._entries()]
        for file in files:  # no lock: a signal handler of this thread may wait for a thread that needs it
            file.let_pages_go(max(0, min(file.length, end - file.base)) if file is current else file.length)

    def drop(self, queue: int, base: int) -> MappedFile | None:
        """Removes one of the kept mappings, and returns it: the mapping ends when the caller drops it. The caller must
        hold no lock then."""
        with self._lock:
            return self._forget(queue, base)

    def make_room(self) -> bool:
        """Drops the older half, because the system has no room for another mapping; False if there was nothing to
        drop."""
        with self._lock:
            old = [key for key, (file, needed) in self._entries() if not needed(file)]
            gone = [self._forget(*key) for key in old[: (len(old) + 1) // 2]]
        self.drops.dropped()
        return bool(gone)
