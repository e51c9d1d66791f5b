"""Makes a store's directory, or refuses one that is not a store or that another user could replace."""

from __future__ import annotations

import os
from pathlib import Path

from cystore.config import StoreConfig
from cystore.engine.inspect.recognize import check_has_no_ledger, is_store
from cystore.errors import StoreFormatError
from cystore.system import files, ownership


def check_directory(root: Path, config: StoreConfig) -> None:
    """Makes a missing directory. Refuses one with foreign content, or one that another user could replace."""
    group = ownership.group_id(config.group)
    if not config.create:
        _check_is_there(root)
    if not config.allow_any_owner:
        ownership.check_way(root, group)
    if root.is_dir():
        with files.translated(root):
            names = files.names(root)
        check_has_no_ledger(root, names)
        if names - {"lost+found"} and not is_store(root):
            raise StoreFormatError(
                f"the directory is not empty and is not a store (it contains {', '.join(sorted(names)[:3])})",
                path=root,
            )
        if group is not None and not names and root.stat().st_uid == os.geteuid():
            files.share(root, group)
    elif root.exists() and not root.is_dir():  # not "not exists": another process may be making it
        raise StoreFormatError("not a directory", path=root)
    else:
        files.make_root(root, group)
    if not config.allow_any_owner:
        ownership.check_store(root, group)


def _check_is_there(root: Path) -> None:
    """With create=false, refuses a missing store. An empty directory may be the mount point of a disk that is not
    mounted."""
    if not root.is_dir() or not files.names(root) - {"lost+found"}:
        raise StoreFormatError(
            "there is no store here, and create=false forbids making one: the directory was moved or deleted, "
            "or its disk is not "
            "mounted; to make a new store, open with create=true",
            path=root,
        )
