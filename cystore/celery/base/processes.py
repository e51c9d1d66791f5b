"""The kind of this process in a fleet."""

from __future__ import annotations

from billiard.process import current_process

MAIN = "MainProcess"  # billiard's name of every process that it has not started


def in_pool() -> bool:
    """True in a process that a prefork pool started: it runs one task at a time, and no event loop."""
    return bool(current_process().name != MAIN)
