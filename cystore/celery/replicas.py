"""Replicas of other homes on this host: the stores in one folder, a directory each (setting `cystore_replicas`).

`cystore replicate` or `cystore ha run` keeps each of them. This module finds them by their homes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from celery.exceptions import ImproperlyConfigured

from cystore import MessageStore, StoreError
from cystore.engine.inspect.recognize import is_store
from cystore.engine.manifest.manifest import read_facts
from cystore.ha import lock
from cystore.ha.home import SECTION, home_of
from cystore.ha.role import is_copied, role_of
from cystore.ha.status import present_status
from cystore.system import files
from cystore.system.links import real_path

log = logging.getLogger("cystore.celery")

SETTING = "cystore_replicas"
COPIED = (
    "it is a copy of the store of a home, which has its master elsewhere; if that is gone for good, open the copy once "
    'with broker_role="async_master"'
)
LeftOut = Callable[[Path, str], None]
_reported: set[tuple[Path, Path]] = set()


def folder_of(app: Any) -> Path | None:
    """The folder of replicas; None without the setting. Raises ImproperlyConfigured."""
    value = app.conf.get(SETTING)
    if not value:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.path.isabs(value):
        raise ImproperlyConfigured(f"{SETTING} must be the absolute path of a folder, not {value!r}")
    return Path(value)


def paths_in(folder: Path, left_out: LeftOut | None = None) -> list[Path]:
    """The stores in a folder, by name; of links, the paths that they lead to. A folder that does not exist, or cannot
    be read, has none. `left_out` hears of what cannot be read."""
    try:
        names = sorted(files.names(folder))
    except (OSError, StoreError) as error:
        if left_out is not None and os.path.lexists(folder):
            left_out(folder, str(error))
        return []
    found = []
    for name in names:
        try:
            path = real_path(folder / name)
            if path.is_dir() and is_store(path):
                found.append(path)
        except (OSError, StoreError) as error:
            if left_out is not None:
                left_out(folder / name, str(error))
    return found


def home_at(path: Path) -> str:
    """The home of a store by its files; "" if it is not known yet, or cannot be read."""
    try:
        return home_of(path, read_facts(path)[0])
    except (OSError, StoreError) as error:
        log.debug("%s: its home is not known: %s", path, error)
        return ""


def replicas_in(folder: Path, but: str = "", left_out: LeftOut | None = None) -> dict[str, Path]:
    """The stores in a folder by their homes, except the store at the path `but`. Of two stores with one home, a replica
    counts more than a copy, and then the first by name. `left_out` hears of what does not count, and why; without it, a
    warning names the other one of two stores with one home, once."""
    return _by_home(
        sorted(paths_in(folder, left_out), key=lambda path: not is_replicated(path)), but, left_out
    )


def served_in(folder: Path, but: str = "") -> dict[str, Path]:
    """`replicas_in` without stores that were only copied: the home of a copy has a master elsewhere."""
    return _by_home(filter(is_replicated, paths_in(folder)), but, None)


def _by_home(paths: Iterable[Path], but: str, left_out: LeftOut | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in paths:
        if str(path) == but:
            continue
        home = home_at(path)
        if not home:
            if left_out is not None:
                left_out(path, "its home is not known yet, or cannot be read")
            continue
        first = found.setdefault(home, path)
        if first == path:
            continue
        if left_out is not None:
            left_out(path, f"{first} has the same home {home}")
        elif (first, path) not in _reported:
            _reported.add((first, path))
            log.warning("%s is ignored: %s has the same home %s", path, first, home)
    return found


def is_replicated(path: Path) -> bool:
    """Whether other hosts may have the log of a store: it is, or was, a slave or a member of a group. Not a copy of
    such a store: the home's master is elsewhere, and the copy does not follow it."""
    try:
        facts = read_facts(path)[0]
        role = role_of(facts)
        if role.is_slave:
            return True
        copied = is_copied(path, facts)
    except (OSError, StoreError):
        return False
    if copied and (path, path) not in _reported:
        _reported.add((path, path))
        log.warning("%s is not served: %s", path, COPIED)
    return not copied and (role.is_elected or SECTION in facts.sections)


def lag_text(path: Path, last_ms: int, time_text: str) -> str:
    """How fresh a replica is, for people; "" for a store that is no replica, as far as its files say. `last_ms` is the
    time of its newest record, `time_text` the same for people."""
    role = role_of(read_facts(path)[0])
    if not role.is_slave and not role.is_elected:
        return ""  # it was promoted, or copied
    status = present_status(path)
    if status.listens:
        return ""
    if not status.connected:
        return f"not connected to its master; its newest record is of {time_text}" if last_ms else "empty"
    return f"follows {status.master}; its newest record is of {time_text}"


def tell_unserved(store: MessageStore) -> None:
    """Logs a warning when the settings of a worker's store give it a port for slaves, and no process serves them."""
    config = store.config
    if not config.ha_listen_port or "ha" in config.services or lock.is_replicated(store.path):
        return
    log.warning(
        "%s: ha_listen_port=%d has no effect in this worker: without the service `ha` it serves no slaves. Add "
        "services=all to the URL of the result backend, or run `cystore ha run` beside the worker",
        store.path,
        config.ha_listen_port,
    )
