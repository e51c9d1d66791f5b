"""A worker's log while its store takes no records. A full disk gives one line, and one more a minute; a store that was
moved gives the one line of `store_watch`.

Celery reports each failed state with two tracebacks, one in the pool process and one in the worker's main process. The
lifecycle log adds its own. All have the same content, so the worker's main process reports it once for all. A task that
itself fails for that reason is reported like any failed task.
"""

from __future__ import annotations

import logging
import warnings

from cystore import StoreFullError, StoreMovedError
from cystore.celery.base.processes import in_pool
from cystore.clock import monotonic_s

TOLD_AGAIN_S = 60.0
LIFECYCLE = "cystore.celery.lifecycle.recorder"
# billiard's ("Pool callback raised exception"), those of the other pools, and the lifecycle log's.
LOGGERS = (
    "multiprocessing",
    "celery.concurrency.thread",
    "celery.worker.request",
    LIFECYCLE,
)


class NoMoves(logging.Filter):
    """Drops what services and the lifecycle log say of a worker's store that was moved, in each process: the step that
    watches the store tells it once."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        words = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(one, StoreMovedError) and str(one.path) == self._path for one in words)


class OneLine(logging.Filter):
    """Reduces the reports of a full disk to one line, and drops those of the next minute."""

    def __init__(self) -> None:
        super().__init__()
        self._left_out = 0
        self._again_at = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a report is written."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, StoreFullError):
            return True
        if in_pool():
            return False  # the main process reports it
        if monotonic_s() < self._again_at:
            self._left_out += 1
            return False
        more = f" ({self._left_out} similar reports left out)" if self._left_out else ""
        record.msg, record.args = "states and events of tasks cannot be stored: %s%s", (error, more)
        record.exc_info = record.exc_text = None
        self._left_out, self._again_at = 0, monotonic_s() + TOLD_AGAIN_S
        return True


def tell_in_one_line(path: str) -> None:
    """Called in a starting worker with the path of its store; the pool processes that it forks inherit it."""
    no_moves = NoMoves(path)
    for name in ("cystore", LIFECYCLE):
        logging.getLogger(name).addFilter(no_moves)
    one_line = OneLine()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(one_line)
    for name in (StoreFullError.__name__, "Reject"):
        warnings.filterwarnings("ignore", f"Exception raised outside body: {name}", RuntimeWarning)
