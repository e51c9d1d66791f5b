"""The stores of an app, opened for reading when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterable

from cystore import MessageStore, StoreConfig
from cystore.celery.base.reading import Source, Stores
from cystore.metrics import open_stores
from cystore.metrics.open_stores import Place
from cystore.operate.command import for_reading


class OpenStores(open_stores.OpenStores):
    """Stores by their paths, which are also read as one."""

    def __init__(self, stores: Place | Iterable[Place], config: StoreConfig | None = None) -> None:
        super().__init__(stores, for_reading(config or StoreConfig()))

    def source(self) -> Source:
        """All of them, to be read as one."""
        if len(self.paths) == 1:
            return self.open(self.paths[0])
        return Stores({str(path): self.open(path) for path in self.paths})


def stores_of(source: Source) -> list[MessageStore]:
    """The single stores."""
    return list(source.by_home.values()) if isinstance(source, Stores) else [source]
