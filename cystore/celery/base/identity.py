"""The identity of a store: the uuid in ``config/storeId``, which moves with the directory; and its home, the id of its
log, which the store shares with its replicas.

A worker forks its pool before it opens its store. So the parts that read the files are imported where they are used."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

from cystore import StoreError, StoreFullError, StoreIsSlaveError, StoreNotWritableError

if TYPE_CHECKING:
    from cystore import MessageStore

log = logging.getLogger("cystore.celery")

# The home of each open store, and `followed` of the store then: another directory at its path may have another home.
_known: weakref.WeakKeyDictionary[MessageStore, tuple[int, str]] = weakref.WeakKeyDictionary()


def store_id_of(store: MessageStore) -> str:
    """The id of a store's directory, made by the first process that asks. Raises StoreFormatError if it is damaged, and
    StoreMovedError if it would be made where the store is no more."""
    from cystore.ha import home

    found = home.directory_id(store.path)
    if not found:
        store.check_usable()  # `store.path` is a name: it would make a directory for the id
        found = home.made_directory_id(store.path)
    return found


def check_id(store: MessageStore) -> None:
    """Finds the home of a store, and makes its id if it has none. Raises StoreError if the id cannot be read: every
    task would run, and its result would have no place. If only the disk is full, or writing is not possible now, the
    next process makes the id."""
    try:
        known_home_of(store)
    except (StoreFullError, StoreNotWritableError) as error:
        log.debug("%s has no id yet: %s", store.path, error)


def known_home_of(store: MessageStore) -> str:
    """The home that a store keeps: the id of its log. A replica has that of its master; before it knows its master, it
    has the id of its directory. The id is read once for each open store, as soon as it is final."""
    followed, found = _known.get(store, (0, None))
    if found is None or followed != store.followed:
        followed = store.followed
        from cystore.engine.manifest.manifest import read_facts
        from cystore.ha import home
        from cystore.ha.role import role_of

        facts = read_facts(store.path)[0]
        found = home.home_of(store.path, facts)
        if not found:
            own = store_id_of(store)
            if role_of(facts).is_slave or role_of(facts).is_elected:
                return own
            found = own
        _known[store] = followed, found
    return found


def has_home(store: MessageStore) -> bool:
    """Whether a store knows the home of its log: a replica that never met its master does not."""
    known_home_of(store)
    return store in _known


def is_replica(store: MessageStore) -> bool:
    """Whether only another store appends to this log: the store is a slave, or a member of a group that is not its
    elected master."""
    try:
        store.check_takes_puts()
    except StoreIsSlaveError:
        return True
    except StoreError:  # a put reports it
        return False
    return False


def is_master(store: MessageStore) -> bool:
    """Whether a record that is appended now stays in the log: the store is no replica, and the lease of an elected
    master lasts by this host's clock."""
    return not is_replica(store) and (not store.epoch or store.stats()["lease_left_ms"] > 0)
