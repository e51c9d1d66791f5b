"""Log lines about the locks that processes share. The kernel of the locks does not log: it calls these functions."""

from __future__ import annotations

import logging
import os

from cystore._native.memory import locks

log = logging.getLogger("cystore")


def long_wait(path: str | os.PathLike[str], lock: str, waited_s: int, owner: int) -> None:
    """A thread waits for a lock, and its owner lives: called every five seconds."""
    log.warning("%s: waiting for the %s lock for %d s; thread %d holds it", path, lock, waited_s, owner)


def over_budget(path: str | os.PathLike[str], lock: str, spent_ms: float, budget_ms: int) -> None:
    """A turn under a lock took longer than others should wait for it."""
    log.debug("%s: a turn under the %s lock took %.1f ms, more than %d", path, lock, spent_ms, budget_ms)


locks.report_to(long_wait, over_budget)
