"""Keeps the memory of a process flat, however long the log is that it writes, reads or works on.

Pages of mapped files that a process has touched count as its resident size, although they belong to the page cache. So
`docker stats`, `--max-memory-per-child` and the OOM killer blame the process for the log. Whoever touches pages looks
here: service threads after a turn, puts with each step of pages, gets and queries now and then, scans every 8 MiB.
"""

from __future__ import annotations

import logging

from cystore._native.memory.control import Control
from cystore._native.system.pages import resident_file_bytes
from cystore.clock import monotonic_s
from cystore.engine.files.segments import MappedFileQueue
from cystore.errors import StoreClosedError

log = logging.getLogger("cystore")

GROWTH_BYTES = 32 << 20
PUT_GROWTH_BYTES = 48 << 20  # a release takes some 1 ms: a put leaves it to a service thread, if there is one
LOOK_S = 0.05  # between two looks of one store, which take some 10 us each
SCAN_BYTES = 8 << 20  # a scan is fast: it looks after so many bytes


class ResidentPages:
    """The resident pages of one store's mapped files in this process: `log` shares its mappings with queues and index.
    Safe for threads."""

    def __init__(self, log: MappedFileQueue, control: Control) -> None:
        self._log, self._control = log, control
        self._looked_s = -LOOK_S
        self._before_bytes = -1  # pages of files in this process after the last release

    def let_go(self) -> None:
        """Releases the pages, but not those of the next appends. Raises OSError if the program locked its memory."""
        self._log.let_pages_go(self._control.wrote)

    def look(self, growth_bytes: int = GROWTH_BYTES, *, now: bool = False) -> None:
        """Releases the store's pages if this process has so many more bytes of file pages than after the last release.
        They stay in the page cache; the next access is a page fault. Does nothing within LOOK_S, except `now`."""
        now_s = monotonic_s()
        if now_s - self._looked_s < LOOK_S and not now:
            return
        self._looked_s = now_s
        now_bytes = resident_file_bytes()
        if self._before_bytes < 0 or now_bytes < self._before_bytes:
            self._before_bytes = now_bytes
        elif now_bytes > self._before_bytes + growth_bytes:
            try:
                self.let_go()
            except StoreClosedError:  # by another thread, which ends the mappings
                return
            except OSError as error:  # mlockall
                log.debug("pages of the store stay in the memory of this process: %s", error)
            self._before_bytes = resident_file_bytes()
