"""The identity of a store: the uuid in ``config/storeId``, which moves with the directory."""

from __future__ import annotations

import contextlib
import uuid
import weakref

from cystore import MessageStore, StoreFormatError
from cystore.system import files

STORE_ID = "storeId"

_known: weakref.WeakKeyDictionary[MessageStore, str] = weakref.WeakKeyDictionary()


def store_id_of(store: MessageStore) -> str:
    """The id of a store, made by the first process that asks. Raises StoreFormatError if it is damaged, and
    StoreMovedError if it would be made where the store is no more."""
    path = store.path / "config" / STORE_ID
    if not path.exists():
        store.check_usable()  # `store.path` is a name: it would make a directory for the id
        with files.temporary(store.path) as draft:
            files.write_whole(store.path, draft, str(uuid.uuid4()).encode(), keep_last=False)
            with contextlib.suppress(FileExistsError):  # another process was first
                files.move(draft, path)
    text = files.read_all(path).decode("ascii", "replace").strip()
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise StoreFormatError(f"the store's id is damaged: {text[:40]!r}", path=path) from None


def known_id_of(store: MessageStore) -> str:
    """`store_id_of`, read once for each open store."""
    found = _known.get(store)
    if found is None:
        found = _known[store] = store_id_of(store)
    return found
