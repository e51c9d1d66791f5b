"""Facts from a store's files, without opening the store: the processes that have it, its segments, its disk use."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cystore.engine.files.log_folders import LogFolders, log_paths, space_of
from cystore.engine.inspect.control_head import read_head
from cystore.engine.inspect.recognize import check_is_store
from cystore.engine.log.commit_log import DIRECTORY, MARKER
from cystore.operate.output import one_line
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.system import files
from cystore.system.store_lock import LOCK_NAME, StoreLocks

BLOCK_BYTES = 512  # unit of st_blocks

STATES = {
    "live": "in use by other processes",
    "exclusive": "in exclusive use by one process (RocketMQ, or exclusive=True); its positions cannot be read "
    "meanwhile",
    "crashed": "not in use; the last process did not close it, and the next open recovers it",
    "closed": "not in use; closed cleanly",
}


@dataclass(frozen=True)
class State:
    """The state of a store.

    `name`: live (other processes have it open), exclusive (one process has it alone: RocketMQ, or exclusive=True),
    crashed (no process has it, and the last one did not close it), closed. `writable`: this process may write into the
    directory.
    """

    name: str
    writable: bool
    has_cystore_records: bool


@dataclass(frozen=True)
class FileUse:
    """A file's name, length, the space it takes on the disk, and when it was written to last (ms)."""

    name: str
    size_bytes: int
    allocated_bytes: int
    modified_ms: int


@dataclass
class Use:
    """The files of one part of a store."""

    files: int = 0
    size_bytes: int = 0
    allocated_bytes: int = 0

    def add(self, other: Use | FileUse) -> None:
        """Takes in a file, or another part."""
        self.files += other.files if isinstance(other, Use) else 1
        self.size_bytes += other.size_bytes
        self.allocated_bytes += other.allocated_bytes


def state(root: Path) -> State:
    """The state of the store in a directory. Raises StoreFormatError if there is none."""
    check_is_store(root)
    names = files.names(root)
    holder = "nobody"
    if LOCK_NAME in names:
        locks = StoreLocks(root, read_only=True)
        try:
            holder = locks.holder()
        finally:
            locks.close()
    left = "crashed" if ABORT_NAME in names else "closed"
    return State(
        name={"shared": "live", "exclusive": "exclusive"}.get(holder, left),
        writable=os.access(root, os.W_OK),
        has_cystore_records=(root / DIRECTORY / MARKER).exists(),
    )


def standing_request(root: Path) -> str | None:
    """A line for people about a standing request to leave a store that is in use; None if there is none."""
    head = read_head(root)
    if head is None or not head.handover:
        return None
    end = f"it ends in {head.left_s:.0f} s" if head.left_s else "it has no end"
    return (
        "HANDOVER: the processes that were attached are asked to leave; "
        f"{end}: cystore handover {one_line(shlex.quote(str(root)))} --cancel"
    )


def files_below(folder: Path) -> Iterator[tuple[str, FileUse]]:
    """(path inside the folder, file) of each file below a folder; does not follow links, leaves out files that are
    removed meanwhile."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        with files.translated(folder):
            raise error
    for entry in entries:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(found.st_mode):
            for inside, use in files_below(Path(entry.path)):
                yield f"{entry.name}/{inside}", use
        else:
            modified_ms = found.st_mtime_ns // 1_000_000
            yield entry.name, FileUse(entry.name, found.st_size, found.st_blocks * BLOCK_BYTES, modified_ms)


def segments(root: Path) -> list[FileUse]:
    """The commit log's files, oldest first."""
    found = [use for folder in log_paths(root) for name, use in files_below(folder) if name != MARKER]
    return sorted(found, key=lambda use: use.name)


def log_folders(root: Path) -> list[dict[str, Any]]:
    """The folders of a log that has several."""
    several = LogFolders.of(root)
    return [
        {
            "path": str(folder.path),
            "new_files": folder.writable,
            "segments": sum(name != MARKER for name, _ in files_below(folder.path)),
            "disk_free_bytes": space_of(folder.path).free_bytes,
            "disk_used_percent": round(space_of(folder.path).used_percent, 1),
        }
        for folder in (() if several is None else several.folders)
    ]


def disk_use(root: Path) -> dict[str, Use]:
    """The files of each part of the store: folders by their name, all files at the top as "other"; "total" last."""
    parts: dict[str, Use] = {}
    total = Use()
    for path, use in files_below(root):
        folder, slash, _ = path.partition("/")
        parts.setdefault(folder if slash else "other", Use()).add(use)
        total.add(use)
    for place in log_paths(root)[1:]:
        for _, use in files_below(place):
            parts.setdefault(str(place), Use()).add(use)
            total.add(use)
    return {**dict(sorted(parts.items())), "total": total}
