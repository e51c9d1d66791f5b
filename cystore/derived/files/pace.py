"""How fast a derived file grows."""

from __future__ import annotations

from cystore.clock import monotonic_s

FAST_BYTES, FAST_S = 128 * 1024, 2.0


class Pace:
    """Of one file, or of files that follow each other. The pages of a file that grows slowly are not read ahead: they
    would take memory, and the disk writes a large page as a whole."""

    def __init__(self) -> None:
        self._grown_s = -FAST_S

    def is_fast(self, step_bytes: int) -> bool:
        """At each step in which the file grows: whether it will soon be written up to the step's end."""
        before_s, self._grown_s = self._grown_s, monotonic_s()
        return step_bytes >= FAST_BYTES and self._grown_s - before_s < FAST_S
