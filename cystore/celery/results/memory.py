"""Keeps the memory of a process that stores and reads results flat, however long the log is.

Touched pages of mapped files count as a process's resident size, although they belong to the page cache.
`--max-memory-per-child` looks at the highest resident size that a pool process ever had (`ru_maxrss`), and so would
replace processes because of the log. So the process releases these pages whenever they have grown by `GROWTH_BYTES`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cystore import MessageStore

GROWTH_BYTES = 32 << 20
LOOKS = 64  # calls between two looks; a look takes some 60 us
LARGE_BYTES = 1 << 20  # records of that size, one or together, are a reason to look
PAGE_BYTES = os.sysconf("SC_PAGESIZE")

_calls = _unseen_bytes = 0
_before_bytes = -1  # the process's file pages at the last release


def shared_bytes() -> int:
    """The part of this process's resident size that is pages of files, libraries included."""
    from cystore.system import files  # a process that opened a store has it

    return int(files.read_all(Path(f"/proc/{os.getpid()}/statm")).split()[2]) * PAGE_BYTES


def look(store: MessageStore, record_bytes: int = 0) -> None:
    """Called after a record was written or read, and by the main process after each turn of its duties. Releases the
    store's pages if there are many."""
    global _calls, _unseen_bytes, _before_bytes
    _calls += 1
    _unseen_bytes += record_bytes
    if _calls % LOOKS and _unseen_bytes < LARGE_BYTES:
        return
    _unseen_bytes = 0
    now_bytes = shared_bytes()
    if _before_bytes < 0:
        _before_bytes = now_bytes
    elif now_bytes > _before_bytes + GROWTH_BYTES:
        store.let_pages_go()
        _before_bytes = shared_bytes()


def _forked() -> None:
    """A child begins with few of its parent's pages."""
    global _before_bytes
    _before_bytes = -1


os.register_at_fork(after_in_child=_forked)
