"""Scans of old messages give back the page cache that they took, so that recent messages stay in memory.

A message is old when it lies further behind the log's end than the share of memory that
access_message_in_memory_max_ratio allows: RocketMQ's own rule for messages that it expects on the disk.
"""

from __future__ import annotations

import logging
import os

from cystore._native.memory.mapping import MappedFile
from cystore.config import StoreConfig

log = logging.getLogger("cystore")

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
STEP_BYTES = 4 << 20  # the scan gives pages back each time it has read this much


def total_memory_bytes() -> int:
    """Physical memory of this host (StoreUtil.TOTAL_PHYSICAL_MEMORY_SIZE)."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def memory_bytes(config: StoreConfig) -> int:
    """The part of the log that counts as held in memory, from its end back."""
    return total_memory_bytes() * config.access_message_in_memory_max_ratio // 100


class ColdPages:
    """One scan. It reports its position. Pages that the cache did not have before, and that no other process has
    mapped, leave the cache behind the scan. The loss of a page costs a later reader a read of the disk, never data."""

    def __init__(self, held_bytes: int) -> None:
        self._held_bytes = held_bytes
        self._segment: MappedFile | None = None
        self._before = b""  # a byte for each page: the cache had it
        self._page = 0  # the first page that the scan has not given back

    def at(self, segment: MappedFile, position: int, wrote: int) -> None:
        """The scan is about to read at a log position inside of `segment`."""
        if segment is not self._segment:
            self.end()
            if wrote - segment.end <= self._held_bytes or segment.in_memory or segment.private:
                return
            self._segment, self._before = segment, self._looked(segment)
            self._page = (position - segment.base) // PAGE_BYTES
        elif position - segment.base - self._page * PAGE_BYTES >= STEP_BYTES:
            self._give_back((position - segment.base) // PAGE_BYTES)

    def end(self) -> None:
        """The scan leaves its segment."""
        if self._segment is not None:
            self._give_back(len(self._before))
            self._segment, self._before = None, b""

    @staticmethod
    def _looked(segment: MappedFile) -> bytes:
        try:
            return segment.pages_in_memory()
        except OSError as error:
            log.debug("%s: pages stay in the cache behind a scan: %s", segment.path, error)
            return b""

    def _give_back(self, end: int) -> None:
        segment, begin = self._segment, self._page
        assert segment is not None
        self._page = end = min(end, len(self._before))
        try:
            while begin < end:
                begin = self._before.find(b"\0", begin, end)
                if begin < 0:
                    return
                stop = self._before.find(b"\1", begin, end)
                stop = end if stop < 0 else stop
                if not segment.page_out(begin, stop):
                    return
                begin = stop
        except OSError as error:
            log.debug("%s: pages stay in the cache behind a scan: %s", segment.path, error)
