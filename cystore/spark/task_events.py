"""The lifecycle log of Celery tasks (topic `celery_events`) as a DataFrame: one row for each event of a task.

The layout is that of `cystore.celery.base.events`; `cystore.reports.task_layout` has it for processes without Celery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cystore.reports.task_layout import FAILURES, ROOT, SUCCEEDED, TOPIC

COLUMNS = (
    "timestamp TIMESTAMP, tags STRING, keys ARRAY<STRING>, properties MAP<STRING, STRING>, value BINARY, "
    "store STRING"
)
DETAILS = (
    "runtime DOUBLE, retries INT, requeue BOOLEAN, exception STRING, traceback STRING, "
    "worker STRING, queue STRING, eta STRING"
)

# Names and types of `task_events`, in this order. Docs: docs/spark.md.
SCHEMA = f"time TIMESTAMP, event STRING, name STRING, task_id STRING, root_id STRING, {DETAILS}, store STRING"


def task_events(reader: Any, paths: str | Sequence[str], **options: str) -> DataFrame:
    """Events of the tasks of one store or several. `reader` is `spark.read` or `spark.readStream`; `options` are
    options of the source.

    Columns: SCHEMA. Unknown details are null, except `retries` (0) and `requeue` (false).
    """
    found = reader.format("cystore").schema(COLUMNS).options(**{"topic": TOPIC, **options})
    # A stream reader takes only one path, as an option; `load` of a batch reader takes several.
    rows = found.option("path", paths).load() if isinstance(paths, str) else found.load(list(paths))
    details = F.from_json(F.col("value").cast("string"), DETAILS)
    root = F.try_element_at(F.filter("keys", lambda key: key.startswith(ROOT)), F.lit(1))
    rows = rows.withColumn("details", details).withColumn("task_id", _id(F.get("keys", F.lit(0))))
    return rows.select(
        F.col("timestamp").alias("time"),
        F.col("tags").alias("event"),
        F.col("properties")["task"].alias("name"),
        "task_id",
        F.coalesce(_id(F.substr(root, F.lit(len(ROOT) + 1))), "task_id").alias("root_id"),
        "details.runtime",
        F.coalesce("details.retries", F.lit(0)).alias("retries"),
        F.coalesce("details.requeue", F.lit(False)).alias("requeue"),
        *(f"details.{name}" for name in ("exception", "traceback", "worker", "queue", "eta")),
        "store",
    )


def _id(key: Column) -> Column:
    """The id in a key: percent-decoded; a + stays a +."""
    return F.when(key.contains("%"), F.try_url_decode(F.replace(key, F.lit("+"), F.lit("%2B")))).otherwise(
        key
    )


def failed() -> Column:
    """True for an event that ends a run badly."""
    return F.col("event").isin(*FAILURES) & ~F.col("requeue")


def ended() -> Column:
    """True for an event that ends a run, in success or failure."""
    return (F.col("event") == SUCCEEDED) | failed()
