"""Logging of lines that come again and again: of an error with every try, or of strangers."""

from __future__ import annotations

import logging

from cystore.clock import monotonic_s
from cystore.errors import StoreFullError, StoreMovedError, StorePermissionError, StoreResourceError

AGAIN_S = 60.0
KINDS_MOST = 16
# The cause lies outside of this program; a traceback adds nothing.
EXPECTED = (StoreFullError, StoreMovedError, StorePermissionError, StoreResourceError)


class Trouble:
    """Logs the errors of repeated work. The log may lie on the disk that is full.

    A full disk, a lack of memory, a refused access or a store that was moved gives one line. The next line of that
    class comes at least a minute later, even if its numbers differ, and even if a try succeeded in between. Any other
    error is logged with its traceback when it begins and when its text changes.
    """

    def __init__(self) -> None:
        self._again_at: dict[type, float] = {}
        self._reported = ""

    def tell(self, log: logging.Logger, level: int, error: BaseException, what: str) -> bool:
        """Logs that `what` met an error, unless it was logged already. Returns whether it logged."""
        if isinstance(error, EXPECTED):
            is_due = self.is_due(error)
            if is_due:
                log.log(level, "%s: %s", what, error, stacklevel=2)
            return is_due
        if str(error) == self._reported:
            return False
        self._reported = str(error)
        log.log(level, "%s: %s", what, error, exc_info=error, stacklevel=2)
        return True

    def is_due(self, error: BaseException) -> bool:
        """Whether this minute had no line about an error of this class yet. Counts this one."""
        now_s, kind = monotonic_s(), type(error)
        if now_s < self._again_at.get(kind, now_s):
            return False
        self._again_at[kind] = now_s + AGAIN_S
        return True

    def over(self) -> None:
        """Called after a try that succeeded: the next error with a traceback is logged again."""
        self._reported = ""


class RareLines:
    """Log lines that other programs cause, as often as they like: a few of each kind in a minute, of `KINDS_MOST` kinds
    at most. A line says how many were left out before it."""

    def __init__(self) -> None:
        self._begun_s = monotonic_s()
        self._told: dict[str, int] = {}
        self._left_out = 0

    def tell(self, log: logging.Logger, level: int, kind: str, most: int, text: str, *words: object) -> bool:
        """Logs the line, if the minute had fewer than `most` of this kind. Returns whether it logged."""
        if not log.isEnabledFor(level):
            return False
        now_s = monotonic_s()
        if now_s - self._begun_s >= AGAIN_S:
            self._begun_s = now_s
            self._told.clear()
        told = self._told.get(kind, 0)
        if told >= most or (not told and len(self._told) >= KINDS_MOST):
            self._left_out += 1
            return False
        self._told[kind] = told + 1
        left_out, self._left_out = self._left_out, 0
        if left_out:
            text += f" ({left_out} lines of this sort were left out before)"
        log.log(level, text, *words, stacklevel=2)
        return True
