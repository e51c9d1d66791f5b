"""The stores of an app, opened for reading when they are first asked for. A store that is away is tried again with each
request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cystore
from cystore import MessageStore, StoreConfig
from cystore.celery.base.reading import Source, Stores
from cystore.operate.command import for_reading
from cystore.system.threads import os_threads


class OpenStores:
    """Stores by their paths. Handles that were given open stay their owner's: this never closes them."""

    def __init__(self, stores: Any, config: StoreConfig | None = None) -> None:
        given = [stores] if isinstance(stores, (str, os.PathLike, MessageStore)) else list(stores)
        if not given:
            raise ValueError("create_app needs at least one store")
        self._given = {one.path: one for one in given if isinstance(one, MessageStore)}
        self.paths = tuple(
            dict.fromkeys(one.path if isinstance(one, MessageStore) else Path(one) for one in given)
        )
        self._config = for_reading(config or StoreConfig())
        self._opened: dict[Path, MessageStore] = {}
        self._lock = os_threads.Lock()

    def open(self, path: Path) -> MessageStore:
        """The handle of one store. Raises the errors of `cystore.open`."""
        with self._lock:
            store = self._given.get(path) or self._opened.get(path)
            if store is None:
                store = self._opened[path] = cystore.open(path, config=self._config)
            return store

    def source(self) -> Source:
        """All of them, to be read as one."""
        if len(self.paths) == 1:
            return self.open(self.paths[0])
        return Stores({str(path): self.open(path) for path in self.paths})

    def close(self) -> None:
        """Closes the handles that this has opened."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for store in opened.values():
            store.close()
