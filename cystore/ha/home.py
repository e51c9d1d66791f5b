"""The id of a log, which all its replicas have: the home of Celery's tasks. It stays the same when another host becomes
the master.

| store | id |
|---|---|
| member of a group with an elected master | the log id of its history |
| slave, and a master that was a slave | the id that its master named (section `home` of the manifest) |
| any other | the id of its directory, in `config/storeId` |

The first master of a group gives the log the id of its directory. So tasks that were sent before keep their home.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.errors import StoreFormatError
from cystore.ha.epochs.history import history_of
from cystore.ha.role import role_of
from cystore.system import files

FILE = ("config", "storeId")
SECTION = "home"  # in the manifest of a slave


def directory_id(root: Path) -> str:
    """The id of a directory; "" if it has none. Raises StoreFormatError for a damaged one."""
    path = root.joinpath(*FILE)
    found = files.read_if_there(path)
    if found is None:
        return ""
    text = found.decode("ascii", "replace").strip()
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise StoreFormatError(
            f"the store's id is damaged: {text[:40]!r}. Write its id into the file: a snapshot of the store has it "
            "there, and each Celery task in its header cystore_home. Or remove the file: the store gets a new id, and "
            "results of tasks that were sent before do not reach it",
            path=path,
        ) from None


def made_directory_id(root: Path) -> str:
    """The id of a directory, made by the first process that asks. Raises StoreFormatError for a damaged one."""
    path = root.joinpath(*FILE)
    if not path.exists():
        with files.temporary(root) as draft:
            files.write_whole(root, draft, str(uuid.uuid4()).encode(), keep_last=False)
            with contextlib.suppress(FileExistsError):  # another process was first
                files.move(draft, path)
    return directory_id(root)


def home_of(root: Path, facts: Facts) -> str:
    """The id of the log; "" while the store does not know it: the directory of a plain store has no id yet, no master
    was elected, or the slave never met its master."""
    role, log_id = role_of(facts), history_of(facts).log_id
    if log_id:
        return _as_uuid(log_id)
    if role.is_elected:
        return ""
    named = facts.sections.get(SECTION)
    if isinstance(named, str) and named:
        return named
    return "" if role.is_slave else directory_id(root)


def named_home(root: Path, manifest: Manifest) -> str:
    """The id that a master names to its slaves; a plain store gets one if it has none."""
    return home_of(root, manifest.snapshot()) or made_directory_id(root)


def keep_home(manifest: Manifest, home: str) -> None:
    """Notes the id that a master named. Ignores a text that is no id: a JVM and earlier releases name none."""
    try:
        known = str(uuid.UUID(home))
    except ValueError:
        return
    if manifest.snapshot().sections.get(SECTION) != known:
        manifest.set_section(SECTION, known)


def new_log_id(root: Path) -> str:
    """The id of a log that gets its first elected master: 32 hexadecimal digits, those of the directory's id."""
    return uuid.UUID(made_directory_id(root)).hex


def _as_uuid(log_id: str) -> str:
    try:
        return str(uuid.UUID(log_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, log_id))
