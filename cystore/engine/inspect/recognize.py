"""Recognises a store, ours or RocketMQ's, by the content of its files and not only by their names.

Any directory may have a folder with the name `index` or `commitlog`, or a file with the name `checkpoint`. Commands
that remove files ask here first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from cystore.engine.files import checkpoint
from cystore.engine.files.compacted_file import FOLDER as COMPACTED
from cystore.engine.files.log_folders import MARK, NEIGHBOUR
from cystore.engine.files.quarantine import QUARANTINE
from cystore.engine.files.segments import base_of_name
from cystore.engine.log import allocate, commit_log
from cystore.engine.manifest import manifest_file
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.system import files
from cystore.system.store_lock import LOCK_NAME, LOCK_TEXT

MAGIC = manifest_file.MAGIC.to_bytes(8, "big")
# The names in a store's directory. The names alone prove nothing.
NAMES = frozenset(
    {
        commit_log.DIRECTORY, checkpoint.FILE_NAME, manifest_file.FILE_NAME, LOCK_NAME, "abort", QUARANTINE,
        allocate.CONTROL_NAME, allocate.HEADROOM_NAME, files.TMP_DIRECTORY, "config", "index", "consumequeue",
        "consumequeue_ext", "timer", COMPACTED, "lost+found",
    }
)  # fmt: skip

LEDGER_PREFIX, LEDGER_DATA = (
    "dledger-",
    "data",
)  # DLedger's folder in a broker's directory, and its entries in that


def ledger_names(root: Path, names: set[str] | None = None) -> list[str]:
    """The folders of DLedgers in a directory, by their names: `names`, if the directory was listed already."""
    found = files.names(root) if names is None else names
    with files.translated(root):
        return sorted(
            name
            for name in found
            if name.startswith(LEDGER_PREFIX)
            and not (root / name).is_symlink()
            and (root / name / LEDGER_DATA).is_dir()
        )


def check_has_no_ledger(root: Path, names: set[str] | None = None) -> None:
    """Raises StoreFormatError for the directory of a DLedger broker. Its queues and index refer to the DLedger's log,
    which no store has: an open would remove them."""
    found = ledger_names(root, names)
    if found:
        raise StoreFormatError(
            f"the log of this broker is a DLedger ({found[0]}), not a commit log: `cystore import` makes a store of it",
            path=root,
        )


def is_store(root: Path) -> bool:
    """Whether a directory is a store: it has a checkpoint of the right length, a manifest of ours, or a file of a
    commit log.

    A store with damaged or removed files counts while its `lock` file has the text of both programs, and the directory
    has no foreign name. A kill while a store is being made leaves that, too. Raises StoreIOError.
    """
    with files.translated(root):
        return _has_checkpoint(root) or _has_manifest(root) or _has_log(root) or _has_lock_alone(root)


def check_is_store(root: Path) -> None:
    """Raises StoreFormatError for anything but the directory of a store."""
    with files.translated(root):
        if not root.is_dir():
            raise StoreFormatError(
                "not a directory" if root.exists() else "there is no store here", path=root
            )
    check_has_no_ledger(root)
    if not is_store(root):
        raise StoreFormatError("the directory is not a store", path=root)


def check_outside_of_stores(root: Path, folders: Iterable[Path]) -> None:
    """Raises StoreConfigError for a folder of a store's log that lies in the directory of another store."""
    for folder in folders:
        above = store_above(folder, but=root)
        if above is not None:
            raise StoreConfigError(f"a folder of the log must not lie in another store, {above}", path=folder)


def store_above(folder: Path, but: Path | None = None) -> Path | None:
    """The directory of a store, other than `but`, in which a folder lies; None if it lies in none."""
    for above in folder.parents:
        with files.translated(above):
            if above != but and (_has_checkpoint(above) or _has_manifest(above)):
                return above
    return None


def _length(path: Path) -> int | None:
    """The length of a regular file; None without one. Does not follow links."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _has_checkpoint(root: Path) -> bool:
    return _length(root / checkpoint.FILE_NAME) == checkpoint.FILE_BYTES


def _has_manifest(root: Path) -> bool:
    path = root / manifest_file.FILE_NAME
    length = _length(path)
    if length is None:
        return False
    with files.opened(path) as fd:
        return any(os.pread(fd, len(MAGIC), at) == MAGIC for at in (0, length // 2))


def _has_log(root: Path) -> bool:
    folder = root / commit_log.DIRECTORY
    if _length(root / f"{folder.name}{NEIGHBOUR}" / MARK) is not None:  # a folder of another store's log
        return False
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return False
    return any(
        (name == commit_log.MARKER or base_of_name(name) is not None) and _length(folder / name) is not None
        for name in files.names(folder)
    )


def _has_lock_alone(root: Path) -> bool:
    path = root / LOCK_NAME
    length = _length(path)
    if length is None or length > len(LOCK_TEXT):
        return False
    names, text = files.names(root), files.read_all(path)
    if not text.strip(b"\0"):  # a kill before the text was written, or a power cut before it was durable
        return names <= {LOCK_NAME, "lost+found"}
    return names <= NAMES and text == LOCK_TEXT
