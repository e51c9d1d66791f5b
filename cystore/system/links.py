"""Links on the way to a store. Imports little, because a worker resolves its URL before it opens the store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cystore.errors import StorePermissionError

LINKS_MAX = 40  # as the kernel


def real_path(path: str | os.PathLike[str]) -> Path:
    """The place that a path leads to, with every link resolved: the only function of cystore that follows links to a
    store, its secrets, certificates and settings, and folders beside it. A part that is missing stays as it is.

    Raises StorePermissionError for a link that belongs neither to this user nor to root: its owner could lead the path
    to another place at any time. In a folder like /tmp everybody can make such a link. Raises ValueError for a path
    with a NUL.
    """
    text, trusted = os.fspath(path), (0, os.geteuid())
    left, reached, links = text.split("/")[::-1], "/" if text.startswith("/") else os.getcwd(), 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            reached = os.path.dirname(reached)
            continue
        step = os.path.join(reached, name)
        try:
            status = os.lstat(step)
            target = os.readlink(step) if stat.S_ISLNK(status.st_mode) else None
        except OSError:  # missing, or no access: the open of the path tells
            target = None
        if target is None or links == LINKS_MAX:  # too many: the open of the path refuses the next one
            reached = step
            continue
        if status.st_uid not in trusted:
            raise StorePermissionError(
                f"a symbolic link of another user (user id {status.st_uid}) leads to {target!r}, and that user could "
                "lead it anywhere: give the path that it leads to, or replace it by a link of your own",
                path=step,
            )
        links += 1
        reached = "/" if target.startswith("/") else reached
        left += target.split("/")[::-1]
    return Path(reached)
