"""The kind of this process in a fleet, its forks, and its collections of garbage."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from billiard.process import current_process

MAIN = "MainProcess"  # billiard's name of every process that it has not started
FORK_WAIT_S = 5.0


def in_pool() -> bool:
    """True in a process that a prefork pool started: it runs one task at a time, and no event loop."""
    return bool(current_process().name != MAIN)


class ForkLock:
    """Keeps forks of this process out of a turn: the turn holds a lock that a fork takes first. A fork waits at most
    `FORK_WAIT_S`, because a turn may wait for a disk or a server. Python never drops functions registered for forks, so
    each module makes only one ForkLock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waited = False
        os.register_at_fork(
            before=self.before_fork, after_in_parent=self.after_in_parent, after_in_child=self.after_in_child
        )

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Waits for the end of a turn."""
        self._waited = self._lock.acquire(timeout=FORK_WAIT_S)

    def after_in_parent(self) -> None:
        """Lets turns begin again."""
        if self._waited:
            self._lock.release()

    def after_in_child(self) -> None:
        """The child has no turns of its parent's."""
        self._lock = threading.RLock()


@contextmanager
def without_collections() -> Iterator[None]:
    """Wraps imports and the opening of a store: the collector would look through all objects of the worker several
    times, and what an import makes stays."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
