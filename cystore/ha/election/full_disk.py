"""A member's disk: a master that can append nothing for longer than a lease gives the role to a member that can."""

from __future__ import annotations

from cystore.clock import monotonic_s
from cystore.engine.log.disk_space import DiskSpace

LOOK_S = 0.5


class FullDisk:
    """Looks at the space of a store now and then. `limit_s`: a disk that is full for so long is not waited for."""

    def __init__(self, space: DiskSpace, limit_s: float) -> None:
        self._space, self._limit_s = space, limit_s
        self._since_s = 0.0  # 0: there was space at the last look
        self._look_at_s = 0.0

    @property
    def is_full(self) -> bool:
        """Whether appends are refused for want of space."""
        now_s = monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._space.watch()
            if not self._space.is_full:
                self._since_s = 0.0
            elif not self._since_s:
                self._since_s = now_s
        return self._since_s > 0

    @property
    def lasts(self) -> bool:
        """Whether the disk was full at each look for `limit_s`."""
        return self.is_full and monotonic_s() - self._since_s >= self._limit_s

    def wait_again(self) -> None:
        """Begins to count the time anew."""
        self._since_s = monotonic_s()
