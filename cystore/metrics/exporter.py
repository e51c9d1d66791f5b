"""The metrics of several stores together, for one answer to Prometheus."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cystore import MessageStore, StoreError
from cystore.metrics.open_stores import OpenStores
from cystore.metrics.store_metrics import metrics
from cystore.metrics.text import STORE, Metric, exposition, merged
from cystore.system.threads import os_threads
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

AWAY = "cystore_store_away"


class Follower(Protocol):
    """Counts what is new in one store's log since its last look."""

    def look(self, store: MessageStore) -> list[Metric]:
        """Reads on, and gives the metrics. Raises StoreError."""


class Exporter:
    """The metrics of stores, each sample with the label `store`. `follow` makes what counts the messages of one store;
    it keeps its counts while the store is away. A store that cannot be read fails no other one's metrics."""

    def __init__(
        self,
        stores: OpenStores,
        follow: Callable[[], Follower] | None = None,
    ) -> None:
        self.stores = stores
        self._followers: dict[Path, Follower] = (
            {} if follow is None else {path: follow() for path in stores.paths}
        )
        self._troubles: defaultdict[Path, Trouble] = defaultdict(Trouble)
        self._lock = os_threads.Lock()  # one look at a time

    def found(self, *, strictly: bool = False) -> list[Metric]:
        """The present metrics. `strictly` raises the StoreError of a store that cannot be read."""
        with self._lock:
            told, away = [], []
            for path in self.stores.paths:
                try:
                    of_store = [metric.of_store(path) for metric in self._of(path)]
                except StoreError as error:
                    if strictly:
                        raise
                    of_store = []
                    away.append(path)
                    self._troubles[path].tell(log, logging.WARNING, error, "no metrics")
                else:
                    self._troubles[path].over()
                told += of_store
        samples = [({STORE: str(path)}, float(path in away)) for path in self.stores.paths]
        return merged([Metric(AWAY, "gauge", "1 for a store that cannot be read now.", samples), *told])

    def text(self) -> str:
        """The same as Prometheus's text."""
        return exposition(self.found())

    def _of(self, path: Path) -> list[Metric]:
        store = self.stores.open(path)
        follower = self._followers.get(path)
        return [*metrics(store), *(follower.look(store) if follower is not None else ())]
