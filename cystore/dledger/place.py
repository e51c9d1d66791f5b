"""The place of a DLedger: the broker's directory (storePathRootDir) and the folder dledger-ID in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cystore.engine.inspect.recognize import LEDGER_DATA, LEDGER_PREFIX, ledger_names
from cystore.errors import StoreFormatError, StoreLockedError
from cystore.system import files
from cystore.system.store_lock import LOCK_NAME, StoreLocks

INDEX = "index"


@dataclass(frozen=True)
class Place:
    """`root` has the old commit log, `config/`, the lock; `folder` has `data`, `index`, `checkpoint`."""

    root: Path
    folder: Path


def find(path: Path) -> Place | None:
    """The DLedger in a broker's directory, or in the DLedger's own folder; None for any other path. Raises
    StoreFormatError for a directory with several DLedgers."""
    with files.translated(path):
        if not path.is_dir():
            return None
    if path.name.startswith(LEDGER_PREFIX) and path.name in ledger_names(path.parent):
        return Place(path.parent, path)
    names = ledger_names(path)
    if len(names) > 1:
        raise StoreFormatError(
            f"has {len(names)} DLedgers ({', '.join(names[:3])}): name the folder of one of them", path=path
        )
    return Place(path, path / names[0]) if names else None


def has_data(place: Place) -> bool:
    """Whether there is a file of entries."""
    return any(entry.is_file() for entry in files.entries(place.folder / LEDGER_DATA))


def check_at_rest(place: Place) -> None:
    """Raises StoreLockedError while a broker runs on the directory."""
    if LOCK_NAME not in files.names(place.root):
        return
    locks = StoreLocks(place.root, read_only=True)
    try:
        holder = locks.holder()
    finally:
        locks.close()
    if holder != "nobody":
        raise StoreLockedError(
            "a broker has the directory and may write to it: stop the broker, then try again", path=place.root
        )
