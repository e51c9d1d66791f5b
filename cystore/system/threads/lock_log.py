"""Log lines about the locks that processes share. The locks' Cython code does not log: it calls these functions."""

from __future__ import annotations

import logging
import os

from cystore._native.memory import locks

log = logging.getLogger("cystore")


def long_wait(path: str | os.PathLike[str], lock: str, waited_s: int, owner: int) -> None:
    """Called every five seconds while a thread waits for a lock whose owner lives."""
    log.warning("%s: waiting for the %s lock for %d s; thread %d holds it", path, lock, waited_s, owner)


def over_budget(path: str | os.PathLike[str], lock: str, spent_ms: float, budget_ms: int) -> None:
    """Called after a turn under a lock that took longer than other threads should wait."""
    log.debug("%s: a turn under the %s lock took %.1f ms, more than %d", path, lock, spent_ms, budget_ms)


locks.report_to(long_wait, over_budget)
