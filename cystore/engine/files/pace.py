"""How fast appends come, and whether they fill large pages of memory before these are written to the disk.

The page cache of Linux keeps files in pages of 4 KiB up to some MiB. A large page costs a mapping less. But a change of
one byte through a mapping makes all of the page dirty, so each sync writes all of it: a sync of one short record wrote
1.5 MiB.
"""

from __future__ import annotations

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s

FAST_BYTES, FAST_S = 4 * 1024 * 1024, 2.0  # so many bytes in this time are fast
LEAST_S = 0.001
LARGE_PAGE_BYTES = 1024 * 1024  # appended for each sync: then a sync writes little more than was appended


class Pace:
    """What all processes appended to the log, and how often they synced it. `look` is called once in each turn of the
    service that makes room."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.syncs = 0  # between the last two looks
        self.fills_large_pages = False
        self.bytes_per_s = 0.0  # falls by half at most, as appends come in bursts; 0: not fast
        self._seq = control.flush_seq
        self._begin_wrote, self._begin_s, self._begin_syncs = control.log_end, monotonic_s(), 0

    def look(self) -> None:
        """Counts the syncs since the last look, and judges anew after FAST_BYTES or FAST_S."""
        control, now_s = self._control, monotonic_s()
        wrote, seq = control.log_end, control.flush_seq
        self.syncs, self._seq = (seq - self._seq) & 0xFFFFFFFF, seq
        self._begin_syncs += self.syncs
        appended, in_time = wrote - self._begin_wrote, now_s - self._begin_s < FAST_S
        if appended < FAST_BYTES and in_time:
            return
        rate = appended / max(now_s - self._begin_s, LEAST_S)
        self.bytes_per_s = max(rate, self.bytes_per_s / 2) if in_time else 0.0
        self.fills_large_pages = in_time and appended >= self._begin_syncs * LARGE_PAGE_BYTES
        self._begin_wrote, self._begin_s, self._begin_syncs = wrote, now_s, 0
