"""Stores that are opened when they are first asked for. A store that is away is tried again with each request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import cystore
from cystore import MessageStore, StoreConfig
from cystore.system.threads import os_threads

Place = str | os.PathLike[str] | MessageStore


class OpenStores:
    """Stores by their paths. Handles that were given open stay their owner's: this never closes them."""

    def __init__(self, stores: Place | Iterable[Place], config: StoreConfig) -> None:
        given = [stores] if isinstance(stores, (str, os.PathLike, MessageStore)) else list(stores)
        if not given:
            raise ValueError("at least one store is needed")
        self._given = {one.path: one for one in given if isinstance(one, MessageStore)}
        self.paths = tuple(
            dict.fromkeys(one.path if isinstance(one, MessageStore) else Path(one) for one in given)
        )
        self._config = config
        self._opened: dict[Path, MessageStore] = {}
        self._lock = os_threads.Lock()

    def open(self, path: Path, progress: Callable[[str, int, int], None] | None = None) -> MessageStore:
        """The handle of one store. Raises the errors of `cystore.open`."""
        with self._lock:
            store = self._given.get(path) or self._opened.get(path)
            if store is None:
                store = self._opened[path] = cystore.open(path, config=self._config, progress=progress)
            return store

    def close(self) -> None:
        """Closes the handles that this has opened."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for store in opened.values():
            store.close()
