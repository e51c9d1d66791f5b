"""Checks, before the first write, which other users could replace a store: reads owners and modes.

Trusted are root, the user that this process runs as, and the group that the setting `group` names. Trusted for the
group bits are also root's group and the user's private group (it has the user's name and no other member). Access
lists count as the group bits that represent them.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

from cystore.errors import StoreConfigError, StorePermissionError
from cystore.system import files

ALL_IDS = (1 << 32) - 1  # that the first user namespace maps
ALL_THE_SAME = "allow_any_owner=True skips this check"


def group_id(name: str) -> int | None:
    """The group that the setting names, by its name or number; None for none. Raises StoreConfigError."""
    if not name:
        return None
    if name.isascii() and name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise StoreConfigError(f"group: there is no group {name!r} on this host") from None


def check(root: Path, group: int | None) -> None:
    """Both of the following checks, for a store that exists."""
    check_way(root, group)
    check_store(root, group)


def check_way(root: Path, group: int | None) -> None:
    """Refuses a store if another user may rename a folder above it, and could so replace the store."""
    user = os.geteuid()
    for folder in reversed(root.parents):
        status = _status(folder)
        if status is None:
            return
        if status.st_uid not in (0, user):
            raise StorePermissionError(
                f"the store {root} is below a directory of {_user(status.st_uid)}, who could put another store "
                "in its place; "
                f"keep it below directories of your own or of root ({ALL_THE_SAME})",
                path=folder,
            )
        if not status.st_mode & stat.S_ISVTX and (who := _others(status, group)):
            raise StorePermissionError(
                f"the store {root} is below a directory that {who} may write to and so put another store in its place; "
                f"`chmod go-w {shlex.quote(str(folder))}`, set its sticky bit, or keep the store elsewhere "
                f"(or share it with that group: setting group; {ALL_THE_SAME})",
                path=folder,
            )


def check_store(root: Path, group: int | None) -> None:
    """Refuses a store that belongs to another user, or that another user may write to."""
    status = check_folder(root, group)
    if group is not None and not (files.is_shared(status) and status.st_gid == group):
        place = shlex.quote(str(root))
        raise StorePermissionError(
            f"the store is not shared with group {_group(group)}; as its owner, with no process attached: "
            f"`chgrp -R {_group(group)} {place} && chmod -R ug+rwX,o-rwx {place} && "
            f"find {place} -type d -exec chmod g+s {{}} +`",
            path=root,
        )
    owners = {0, os.geteuid(), status.st_uid}
    for entry in files.entries(root):
        found = _status(Path(entry.path))
        if found is not None:  # None: an attached process removed it
            _check_owner(Path(entry.path), found, owners, group)
            _check_mode(Path(entry.path), found, group)


def check_folder(path: Path, group: int | None) -> os.stat_result:
    """The same for one folder, without what is in it."""
    status = path.stat()
    _check_owner(path, status, {0, os.geteuid()}, group)
    _check_mode(path, status, group)
    return status


def _check_owner(path: Path, status: os.stat_result, trusted: set[int], group: int | None) -> None:
    if status.st_uid in trusted or (group is not None and status.st_gid == group):
        return
    if _is_unmapped(status.st_uid):
        raise StorePermissionError(
            "it belongs to a user id that this user namespace does not map, as the directories of a host do in a "
            "container: map that id into the container (Podman: --userns=keep-id), run the container as that user, "
            f"or accept every owner ({ALL_THE_SAME})",
            path=path,
        )
    raise StorePermissionError(
        f"it belongs to {_user(status.st_uid)} and you are {_user(os.geteuid())}; run this as that user, open "
        "the store with "
        f"read_only=True, or share it (setting group; {ALL_THE_SAME})",
        path=path,
    )


def _is_unmapped(uid: int) -> bool:
    """Whether a user id stands for all that have none in this user namespace. Of a namespace that maps all ids it is a
    user like any other."""
    unknown = int(files.read_all(Path("/proc/sys/kernel/overflowuid")))
    ranges = files.read_all(Path(f"/proc/{os.getpid()}/uid_map")).split()
    return uid == unknown and sum(map(int, ranges[2::3])) < ALL_IDS


def _check_mode(path: Path, status: os.stat_result, group: int | None) -> None:
    who = _others(status, group)
    if who:
        raise StorePermissionError(
            f"{who} may write to it; `chmod go-w {shlex.quote(str(path))}`, or share the store (setting group; "
            f"{ALL_THE_SAME})",
            path=path,
        )


def _status(path: Path) -> os.stat_result | None:
    with files.translated(path):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
    if stat.S_ISLNK(status.st_mode):
        raise files.link_refused(path)
    return status


def _others(status: os.stat_result, group: int | None) -> str:
    """The untrusted users that may write; empty for none."""
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, group) and not _is_private(status.st_gid):
        return f"group {_group(status.st_gid)}"
    return ""


def _is_private(gid: int) -> bool:
    """Whether a group is the private one of the user that this process runs as."""
    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return gid == os.geteuid()
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
