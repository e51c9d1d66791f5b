"""Warnings about slow puts (DefaultMessageStore.asyncPutMessage, CommitLog.asyncPutMessage). The append kernel says
which put is slow."""

from __future__ import annotations

import logging
from pathlib import Path

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s

log = logging.getLogger("cystore")

SLOW_PUT_MS = 500  # of a wait for the disk or a slave; that of the append itself is in append.pxd
AGAIN_S = 10.0  # a slow disk makes every put slow: the log gets one line in this time


class SlowPuts:
    """Counts the slow puts of all processes, and logs those of this one."""

    def __init__(self, control: Control, directory: Path) -> None:
        self._control, self._directory = control, directory
        self._again_at_s, self._untold = 0.0, 0

    def tell(self, took_ms: int, what: str) -> None:
        """Reports that a put reached the state `what` after `took_ms`. If several threads call it at the same time, at
        worst one line more is written."""
        self._control.count_slow_put()
        now_s = monotonic_s()
        if now_s < self._again_at_s:
            self._untold += 1
            return
        untold, self._untold, self._again_at_s = self._untold, 0, now_s + AGAIN_S
        log.warning(
            "%s: a put %s after %d ms%s",
            self._directory,
            what,
            took_ms,
            f"; {untold} more slow puts since the last of these lines" if untold else "",
        )
