"""The folder quarantine/: copies of damaged bytes of the log, kept for repair."""

from __future__ import annotations

from pathlib import Path

from cystore.engine.segments import file_name
from cystore.system import files

QUARANTINE = "quarantine"
MAX_NAMES = 1_000_000

Pieces = list[tuple[Path, int, int]]  # (file, begin, end) of each part of a range of the log


def copy_name(begin: int, end: int) -> str:
    """Name in quarantine/ of the copy of log bytes [begin, end)."""
    return f"commitlog-{file_name(begin)}-{file_name(end)}"


def pieces_of(directory: Path, file_bytes: int, begin: int, end: int) -> Pieces:
    """The parts of log bytes [begin, end) that have a file in `directory`."""
    pieces = []
    for base in range(begin - begin % file_bytes, end, file_bytes):
        path = directory / file_name(base)
        if path.exists():
            pieces.append((path, max(begin - base, 0), min(end - base, file_bytes)))
    return pieces


def put_aside(root: Path, pieces: Pieces, wanted: str) -> str:
    """Copies `pieces` to quarantine/ under the name `wanted` and returns the name that the copy has.

    A copy with the same bytes is used again. Another copy of that name is left alone; the new one gets a number. Raises
    StoreFullError.
    """
    for number in range(MAX_NAMES):
        name = wanted if number == 0 else f"{wanted}.{number}"
        target = root / QUARANTINE / name
        try:
            files.copy_ranges(root, pieces, target)
        except FileExistsError:
            if files.same_bytes(pieces, target):
                return name
            continue
        return name
    raise FileExistsError(f"{wanted} and {MAX_NAMES} more")
