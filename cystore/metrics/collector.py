"""The metrics of stores for `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cystore.metrics.store_metrics import metrics
from cystore.metrics.text import merged

if TYPE_CHECKING:
    from cystore.store import MessageStore


class Collector:
    """For `prometheus_client`: ``REGISTRY.register(Collector(store))``, or several stores at once. Each sample has the
    label `store`, so a process may also register one Collector for each store. Each scrape reads the stores. Needs
    cystore[metrics]."""

    def __init__(self, *stores: MessageStore) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ImportError(
                "cystore.metrics.Collector needs prometheus_client: pip install 'cystore[metrics]'"
            ) from error
        if not stores:
            raise TypeError("Collector needs a store: Collector(store)")
        self._stores, self._core = stores, core

    def describe(self) -> Iterator[Any]:
        """No names: a registry refuses names that another Collector has, though the labels differ."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """The metrics as families of prometheus_client."""
        found = (metric.of_store(store.path) for store in self._stores for metric in metrics(store))
        for metric in merged(found):
            family = self._core.Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
            for name, labels, value in metric.lines():
                family.add_sample(name, labels, value)
            yield family
