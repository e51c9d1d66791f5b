"""Numbers of stores under Prometheus names, as text or for `prometheus_client` (StoreStatsService, BrokerStatsManager).

    from prometheus_client import REGISTRY, start_http_server
    from cystore.metrics import Collector

    REGISTRY.register(Collector(store))
    start_http_server(9464)

May import `cystore` and what is below it: docs/architecture.md.
"""

from cystore.metrics.collector import Collector as Collector
from cystore.metrics.store_metrics import metrics as metrics
from cystore.metrics.text import Kind as Kind
from cystore.metrics.text import Metric as Metric
from cystore.metrics.text import Samples as Samples
from cystore.metrics.text import exposition as exposition
