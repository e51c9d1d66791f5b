"""Keeps the segment that is written to in memory, as the setting active_segment_memory says (MappedFile.mlock)."""

from __future__ import annotations

import logging

from cystore._native.memory.mapping import MappedFile

log = logging.getLogger("cystore")


class ActiveSegment:
    """The segment of one process that is locked, or asked for. Its mapping and its lock end together."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._held: MappedFile | None = None

    def is_now(self, segment: MappedFile, allocated: int) -> None:
        """Appends go to this segment, whose space is there up to log position `allocated`. The lock of the one before
        ends. A lock that the system refuses is told once: the store works without.
        """
        if self._how == "default" or segment is self._held or segment.in_memory:
            return
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
        self._held = None
