"""Logging of an error that comes again with every try."""

from __future__ import annotations

import logging

from cystore.clock import monotonic_s
from cystore.errors import StoreFullError, StoreMovedError, StorePermissionError, StoreResourceError

AGAIN_S = 60.0
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
            now, kind = monotonic_s(), type(error)
            if now < self._again_at.get(kind, now):
                return False
            self._again_at[kind] = now + AGAIN_S
            log.log(level, "%s: %s", what, error, stacklevel=2)
            return True
        if str(error) == self._reported:
            return False
        self._reported = str(error)
        log.log(level, "%s: %s", what, error, exc_info=error, stacklevel=2)
        return True

    def over(self) -> None:
        """Called after a try that succeeded: the next error with a traceback is logged again."""
        self._reported = ""
