"""The active segment in this process's memory: each page fault there brings in one page, and the setting
active_segment_memory may keep the segment in memory (MappedFile.mlock)."""

from __future__ import annotations

import contextlib
import logging
from weakref import ref

from cystore._native.memory.mapping import MappedFile

log = logging.getLogger("cystore")


class ActiveSegment:
    """The segment that one process appends to. Only a setting keeps it mapped: its mapping and its lock end
    together."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._held: MappedFile | None = None
        self._last: ref[MappedFile] | None = None

    def is_now(self, segment: MappedFile, begin: int, allocated: int) -> None:
        """Appends go to this segment from now on, at log position `begin` and behind. Its space is reserved up to
        `allocated`. The lock of the segment before ends. If the system refuses a lock, that is logged once: the store
        works without it.
        """
        before = None if self._last is None else self._last()
        if before is segment or segment.in_memory:
            return
        self._last = ref(segment)
        self._fault_single_pages(before, segment, begin)
        if self._how != "default":
            self._keep(segment, allocated)

    @staticmethod
    def _fault_single_pages(before: MappedFile | None, segment: MappedFile, begin: int) -> None:
        """Expects scattered accesses from `begin` on. In a file that is read in order, the kernel brings in up to 8 MiB
        of pages at a page fault (read_ahead_kb): 20 ms of a put's processor time where memory is scarce. The segment
        `before` may be read in order again."""
        with contextlib.suppress(OSError):  # a process at its limit of mappings works without
            if before is not None:
                before.expect_in_order()
            segment.expect_scattered(max(begin - segment.base, 0))

    def _keep(self, segment: MappedFile, allocated: int) -> None:
        before, self._held = self._held, segment
        try:
            if before is not None and before.locked:
                before.unlock()
            if self._how == "lock":
                segment.lock()
            else:
                segment.will_need(0, max(0, min(allocated, segment.end) - segment.base))
        except OSError as error:
            log.warning(
                "%s: cannot be kept in memory (active_segment_memory): %s; for a lock raise RLIMIT_MEMLOCK of "
                "this process (ulimit -l, LimitMEMLOCK= of systemd) above two segments",
                segment.path,
                error,
            )
            self._how = "default"

    def forget(self) -> None:
        """Lets the mapping go, and its lock with it."""
        self._held = self._last = None
