"""The small files of a DLedger: which entry is committed, and the term. Both are Java properties."""

from __future__ import annotations

from pathlib import Path

from cystore.system import files

CHECKPOINT, TERM = "checkpoint", "currterm"
COMMITTED, CURRENT_TERM = "committedIndex", "currTerm"
LAST_COPY = ".bak"
INT64_MAX = (1 << 63) - 1


def committed_index(folder: Path) -> int:
    """The index up to which entries are committed, by the checkpoint or its last copy; -1 if nothing says it.

    DLedger removes the checkpoint before it renames the new one, so a kill may leave only the copy.
    """
    for name in (CHECKPOINT, CHECKPOINT + LAST_COPY):
        found = _number(folder / name, COMMITTED)
        if found is not None:
            return found
    return -1


def current_term(folder: Path) -> int | None:
    """The term that the member knew last; None if nothing says it."""
    return _number(folder / TERM, CURRENT_TERM)


def _number(path: Path, name: str) -> int | None:
    data = files.read_if_there(path)
    for line in (data or b"").decode("ascii", "replace").splitlines():
        key, equals, value = line.partition("=")
        value = value.strip()
        if equals and key.strip() == name and value.isascii() and value.isdecimal() and len(value) <= 19:
            return min(int(value), INT64_MAX)
    return None
