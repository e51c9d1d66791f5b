"""The folder quarantine/: copies of damaged bytes of the log, kept for repair, and copies of compacted files whose
values were left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from cystore.engine.files.segments import file_name
from cystore.errors import StoreFormatError
from cystore.system import files
from cystore.system.ranges import file_ranges
from cystore.value_class import value_class

QUARANTINE = "quarantine"
MAX_NAMES = 1_000_000

Pieces = list[tuple[Path, int, int]]  # (file, begin, end) of each part of a range of the log


def copy_name(begin: int, end: int) -> str:
    """Name in quarantine/ of the copy of log bytes [begin, end)."""
    return f"commitlog-{file_name(begin)}-{file_name(end)}"


def pieces_of(path_of: Callable[[int], Path], file_bytes: int, begin: int, end: int) -> Pieces:
    """The parts of log bytes [begin, end) that have a file; `path_of` gives its path by its base."""
    pieces = []
    for base in range(begin - begin % file_bytes, end, file_bytes):
        path = path_of(base)
        if path.exists():
            pieces.append((path, max(begin - base, 0), min(end - base, file_bytes)))
    return pieces


def put_aside(root: Path, pieces: Pieces, wanted: str, elsewhere: Path | None = None) -> str:
    """Copies `pieces` to quarantine/, or to another folder, under the name `wanted` and returns the name that the copy
    has.

    A copy with the same bytes is used again. Another copy of that name is left alone; the new one gets a number. Raises
    StoreFullError.
    """
    if elsewhere is not None:
        drafts = elsewhere / files.TMP_DIRECTORY
        made = not drafts.exists()
        try:
            return _put_aside(elsewhere, elsewhere, pieces, wanted)
        finally:
            if made and drafts.exists() and not files.names(drafts):
                files.remove_directory(drafts)
    return _put_aside(root, root / QUARANTINE, pieces, wanted)


def _put_aside(root: Path, folder: Path, pieces: Pieces, wanted: str) -> str:
    """Makes drafts below `root`, and the copy in `folder`."""
    for number in range(MAX_NAMES):
        name = wanted if number == 0 else f"{wanted}.{number}"
        target = folder / name
        try:
            file_ranges.copy_ranges(root, pieces, target)
        except FileExistsError:
            if file_ranges.same_bytes(pieces, target):
                return name
            continue
        return name
    raise FileExistsError(f"{wanted} and {MAX_NAMES} more")


# ------------------------------------------------------------------------------------------------ the copies

_COMPACTED = re.compile(r"compacted-\d{20}(?:\.\d{1,6})?")
_NAME = re.compile(r"commitlog-(\d{20})-(\d{20})(?:\.\d{1,6})?")
_OFFSET_MAX = (1 << 63) - 1


@value_class(frozen=True)
class QuarantinedCopy:
    """A copy in quarantine/ of log bytes [begin, end); its name contains both. Of a compacted file, both are 0."""

    name: str
    begin: int
    end: int
    size_bytes: int = 0
    allocated_bytes: int = 0
    modified_ms: int = 0

    def path(self, root: Path) -> Path:
        """The path of the copy."""
        return root / QUARANTINE / self.name


def copy_named(name: str) -> QuarantinedCopy:
    """The range in the name of a copy. Raises StoreFormatError for a name that no copy has."""
    match = _NAME.fullmatch(name)
    if match is None or not int(match[1]) < int(match[2]) <= _OFFSET_MAX:
        raise StoreFormatError(
            f"{name!r} is not the name of a copy in quarantine/: names are commitlog-BEGIN-END, with 20 digits each"
        )
    return QuarantinedCopy(name, int(match[1]), int(match[2]))


def compacted_name(number: str) -> str:
    """Name in quarantine/ of the copy of the compacted file with that number, as its name has it."""
    return f"compacted-{number}"


def quarantined_copies(root: Path) -> list[QuarantinedCopy]:
    """The copies in quarantine/ of log bytes, in the order of the log. Leaves out files with other names, which we did
    not make, and files that are removed meanwhile."""
    return sorted(_copies(root, _NAME), key=lambda one: (one.begin, one.end, one.name))


def compacted_copies(root: Path) -> list[QuarantinedCopy]:
    """The copies of compacted files, by name."""
    return sorted(_copies(root, _COMPACTED), key=lambda one: one.name)


def _copies(root: Path, pattern: re.Pattern[str]) -> Iterator[QuarantinedCopy]:
    for entry in files.entries(root / QUARANTINE):
        if not pattern.fullmatch(entry.name):
            continue
        try:
            one = copy_named(entry.name) if pattern is _NAME else QuarantinedCopy(entry.name, 0, 0)
            status = entry.stat(follow_symlinks=False)
        except (StoreFormatError, FileNotFoundError):
            continue
        if entry.is_file(follow_symlinks=False):
            modified_ms = status.st_mtime_ns // 1_000_000
            yield QuarantinedCopy(
                one.name, one.begin, one.end, status.st_size, status.st_blocks * 512, modified_ms
            )
