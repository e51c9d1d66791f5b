"""How a service thread waits: for its interval while there is something to do, and for an append when there has been nothing for a while.

A hundred attached processes that do nothing then hardly wake up, and the first append after a quiet time wakes them. While appends go on
nobody sleeps on them: a wake-up costs the append a system call.
"""

from __future__ import annotations

from collections.abc import Callable

from cystore._native.control import Control
from cystore.clock import monotonic_s
from cystore.system import os_threads

QUIET_S = 1.0  # without an append, before a thread sleeps until the next one
SLEEP_MS = 2000
LOOK_S = 0.05  # how often a thread looks whether its work is due before the interval is over


class QuietWait:
    """Waits for one service thread. `idle()` says that the service has nothing left to do; `stopping` ends the thread. `due()` says that
    it cannot wait for the end of its interval."""

    def __init__(
        self,
        control: Control,
        idle: Callable[[], bool],
        stopping: os_threads.Flag,
        due: Callable[[], bool] | None = None,
    ) -> None:
        self._control, self._idle, self._stopping, self._due = control, idle, stopping, due
        self._seen, self._since_s = control.append_seq, monotonic_s()

    def __call__(self, interval_s: float) -> None:
        """Returns after the interval, or in a quiet time with the next append."""
        seen, now_s = self._control.append_seq, monotonic_s()
        if seen != self._seen or not self._idle():
            self._seen, self._since_s = seen, now_s
        if now_s - self._since_s < QUIET_S:
            self._nap(interval_s)
        elif not self._stopping.is_set():  # whoever stops the thread changes the word after that
            self._control.wait_append(seen, SLEEP_MS)

    def _nap(self, interval_s: float) -> None:
        """Sleeps for an interval, or until the work is due."""
        if self._due is None:
            self._stopping.wait(interval_s)
            return
        until_s = monotonic_s() + interval_s
        while (left_s := until_s - monotonic_s()) > 0:
            if self._stopping.wait(min(left_s, LOOK_S)) or self._due():
                break


class AppendWait:
    """Waits for the thread that dispatches: until the next append in any process."""

    def __init__(self, control: Control, stopping: os_threads.Flag) -> None:
        self._control, self._stopping = control, stopping

    def __call__(self, interval_s: float) -> None:
        """Returns with the next append, at once while something is not dispatched, or after a while. It may return early."""
        seen = self._control.append_seq
        if self._control.dispatched >= self._control.wrote and not self._stopping.is_set():
            self._control.wait_append(seen, SLEEP_MS)
