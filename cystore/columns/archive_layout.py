"""The places of an archive's files: data/topic=T/date=YYYY-MM-DD/NAME, one Hive layout for all runs. NAME begins with
the range of the log.

Archives of earlier versions have a folder for each step between data/ and topic=T; Spark refuses two or more of them.
`migrate` moves the files of a step, then rewrites its manifest, then removes its folder. A kill leaves files at either
place under a manifest with the old paths: `place_of` finds both, and the next run continues.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cystore.errors import CorruptRecordError, StoreFormatError
from cystore.services.retention.archive_mark import (
    DATA,
    MANIFESTS,
    ArchivedFile,
    range_of,
    read_manifest,
    render_manifest,
)
from cystore.system import files

log = logging.getLogger("cystore")

_OF_A_STEP = re.compile(rf"{DATA}/\d{{20}}-\d{{20}}/(.+)")
_FILE = re.compile(r"(\d{20}-\d{20})-[0-9a-f]{12}\.parquet")


def place_of(home: Path, one: ArchivedFile) -> Path:
    """The path of an archived file: the manifest's path, or the path after a migration. The manifest's path if neither
    exists."""
    named = home / one.path
    moved = home / _flat(one.path)
    return moved if moved != named and not named.exists() and moved.exists() else named


def _flat(path: str) -> str:
    """A file's path in the present layout."""
    found = _OF_A_STEP.fullmatch(path)
    return path if found is None else f"{DATA}/{found[1]}"


def place_files(home: Path, run: Path, listed: Sequence[ArchivedFile]) -> tuple[ArchivedFile, ...]:
    """Moves the files of a step from `run` to their places, durably. A kill leaves moved files without a manifest; the
    next run removes them (`stale`)."""
    placed = tuple(replace(one, path=f"{DATA}/{one.path}") for one in listed)
    _move((run / one.path, home / after.path) for one, after in zip(listed, placed, strict=True))
    return placed


def _move(names: Iterator[tuple[Path, Path]]) -> None:
    """Renames the files, and syncs each target folder once."""
    folders: dict[Path, None] = {}
    for source, target in names:
        files.make_directory(target.parent)
        files.rename_no_replace(source, target)
        folders[target.parent] = None
    for folder in folders:
        files.sync_directory(folder)


def stale(home: Path, up_to: int) -> Iterator[Path]:
    """The files and folders below data/ that hold the log from `up_to` on. No manifest names them."""
    for entry in files.entries(home / DATA):
        begin = range_of(entry.name)
        if begin is not None:
            if begin >= up_to:
                yield Path(entry.path)
            continue
        yield from (path for path in _files_below(Path(entry.path)) if _begin(path) >= up_to)


def _begin(path: Path) -> int:
    """The begin of a file's range of the log; -1 for other names."""
    found = _FILE.fullmatch(path.name)
    begin = None if found is None else range_of(found[1])
    return -1 if begin is None else begin


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in files.entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(Path(entry.path))
        else:
            yield Path(entry.path)


def migrate(home: Path) -> int:
    """Brings the steps of an older archive into the present layout; returns their number. A step with an unreadable
    manifest does not change."""
    done = 0
    for entry in files.entries(home / DATA):
        if range_of(entry.name) is None:
            continue
        try:
            manifest = read_manifest(home, f"{MANIFESTS}/{entry.name}.json")
        except (StoreFormatError, CorruptRecordError) as error:
            log.error("%s keeps its old layout: %s", entry.path, error)
            continue
        moved = tuple(replace(one, path=_flat(one.path)) for one in manifest.files)
        pairs = zip(manifest.files, moved, strict=True)
        _move((home / one.path, home / after.path) for one, after in pairs if (home / one.path).exists())
        after = render_manifest(replace(manifest, files=moved))
        files.write_whole(home, home / manifest.name, after, keep_last=False)
        files.remove_tree(Path(entry.path))
        done += 1
    return done
