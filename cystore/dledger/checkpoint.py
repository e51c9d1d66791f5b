"""The small files of a DLedger: the committed index and the term. Both files are Java properties."""

from __future__ import annotations

from pathlib import Path

from cystore.system import files

CHECKPOINT, TERM = "checkpoint", "currterm"
COMMITTED, CURRENT_TERM = "committedIndex", "currTerm"
LAST_COPY = ".bak"
INT64_MAX = (1 << 63) - 1


def committed_index(folder: Path) -> int:
    """The last committed index, from the checkpoint or its last copy; -1 if neither has it.

    DLedger removes the checkpoint before it renames the new one, so a kill may leave only the copy.
    """
    for name in (CHECKPOINT, CHECKPOINT + LAST_COPY):
        found = _number(folder / name, COMMITTED)
        if found is not None:
            return found
    return -1


def current_term(folder: Path) -> int | None:
    """The member's last known term; None if the file does not have it."""
    return _number(folder / TERM, CURRENT_TERM)


def _number(path: Path, name: str) -> int | None:
    data = files.read_if_there(path)
    for line in (data or b"").decode("ascii", "replace").splitlines():
        key, equals, value = line.partition("=")
        value = value.strip()
        if equals and key.strip() == name and value.isascii() and value.isdecimal() and len(value) <= 19:
            return min(int(value), INT64_MAX)
    return None
