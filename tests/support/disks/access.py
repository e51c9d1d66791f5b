"""Who may read what was made: modes of files and folders, made without a umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def access(root: Path) -> dict[str, int]:
    """Mode of a folder and of everything in it."""
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]
    }


def check_access(root: Path, *, file: int = 0o600, folder: int = 0o700) -> None:
    """Everything has the access of files and folders of one owner, or as given."""
    modes = access(root)
    assert len(modes) > 1
    assert modes == {name: folder if (root / name).is_dir() else file for name in modes}


@contextmanager
def no_umask() -> Iterator[None]:
    """What is made has the mode that was asked for."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)
