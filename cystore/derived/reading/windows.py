"""Windows of the log: each call of a reader has one of its own, and leaves it to the next call."""

from __future__ import annotations

from cystore._native.record.window import LogWindow
from cystore.engine.log.commit_log import CommitLog

SPARE_WINDOWS = 8


class SpareWindows:
    """The windows that no call uses. `free` is the list of them, which kernels share."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._commit_log = commit_log
        self.free: list[LogWindow] = []
        commit_log.files.drops.empties(self.free)

    def take(self) -> LogWindow:
        """A window for one call. A call that fails does not give it back."""
        try:
            return self.free.pop()
        except IndexError:
            return self._commit_log.window()

    def give_back(self, window: LogWindow) -> None:
        if len(self.free) < SPARE_WINDOWS:
            self.free.append(window)

    def clear(self) -> None:
        """Drops the segments that are kept for the next call."""
        self.free.clear()
