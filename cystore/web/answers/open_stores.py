"""The stores of an app, opened for reading when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from cystore import CorruptRecordError, MessageStore, StoreConfig
from cystore.celery.base.reading import Source, Stores
from cystore.metrics import open_stores
from cystore.metrics.open_stores import Place
from cystore.operate.command import for_reading
from cystore.operate.queue_messages import lost_range


class OpenStores(open_stores.OpenStores):
    """Stores by their paths, which are also read as one."""

    def __init__(self, stores: Place | Iterable[Place], config: StoreConfig | None = None) -> None:
        super().__init__(stores, for_reading(config or StoreConfig()))

    def open(self, path: Path, progress: Callable[[str, int, int], None] | None = None) -> MessageStore:
        """The handle of one store. Raises the errors of `cystore.open`, and CorruptRecordError if no record of the log
        can be read: an empty list would say that there was never a task."""
        store = super().open(path, progress)
        lost = lost_range(store)
        if lost is not None and store.stats()["min_physical_offset"] >= lost[0]:
            raise CorruptRecordError(
                f"no record of the log can be read, bytes {lost[0]}..{lost[1]} are lost",
                path=path,
                offset=lost[0],
            )
        return store

    def source(self) -> Source:
        """All of them, to be read as one."""
        if len(self.paths) == 1:
            return self.open(self.paths[0])
        return Stores({str(path): self.open(path) for path in self.paths})


def stores_of(source: Source) -> list[MessageStore]:
    """The single stores."""
    return list(source.by_home.values()) if isinstance(source, Stores) else [source]
