"""Shorter ways to a DataFrame: a topic with the wanted columns, a count, a view for each topic.

Spark does not tell a Python data source which columns a query needs, so these functions set option `columns`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.errors import PySparkAttributeError, PySparkNotImplementedError
from pyspark.sql import DataFrame, SparkSession

from cystore.errors import StoreConfigError
from cystore.layout import LMQ_PREFIX
from cystore.spark.options import parse
from cystore.spark.source.plan import open_reading

Names = str | Sequence[str]
Place = str | os.PathLike[str]
CASE_SENSITIVE = "spark.sql.caseSensitive"
COUNTED = "offset"  # the cheapest of all columns


def table(
    spark: SparkSession,
    path: Place,
    topic: Names = (),
    *,
    columns: Names = (),
    tags: Names = (),
    key: Names = (),
    **options: Any,
) -> DataFrame:
    """The messages of a store (or of all stores of a glob or URL) as a DataFrame: of one `topic` or several, with the
    named `columns` (default: all), and only those with one of the `tags`, or `key`. `options` are further options of
    the source. Raises StoreConfigError."""
    given = {name: str(value) for name, value in options.items()}
    for name, value in (("topic", topic), ("columns", columns), ("tags", tags), ("key", key)):
        if value != () and value != []:
            given[name] = _listed(name, value)
    given.setdefault("cores", str(cores_of(spark)))
    parse({**given, "path": os.fspath(path)}, stream=False)
    return spark.read.format("cystore").options(**given).load(os.fspath(path))


def count(spark: SparkSession, path: Place, topic: Names = (), **options: Any) -> int:
    """The number of messages of `table` with these arguments. Decodes only one number of each message."""
    return table(spark, path, topic, **{**options, "columns": COUNTED}).count()


def views(
    spark: SparkSession,
    path: Place,
    topics: Iterable[str] | None = None,
    *,
    prefix: str = "",
    columns: Names = (),
    **options: Any,
) -> dict[str, str]:
    """Registers a temporary view for each topic (default: all topics that the store has now, without light queues). A
    view's name is `prefix` and the topic. Each view has the named `columns`. Returns the views' names by topic, quoted
    for SQL. Raises StoreConfigError, also for topics whose views would be one for Spark, before any view is made."""
    names = _topics(path, options) if topics is None else list(dict.fromkeys(topics))
    _check_distinct(spark, names)
    made = {}
    for topic in names:
        made[topic] = "`" + f"{prefix}{topic}".replace("`", "``") + "`"
        table(spark, path, topic, columns=columns, **options).createOrReplaceTempView(made[topic])
    return made


def _check_distinct(spark: SparkSession, topics: Sequence[str]) -> None:
    """Raises StoreConfigError for names that Spark does not tell apart: a later view would replace an earlier one."""
    if str(spark.conf.get(CASE_SENSITIVE, "false")).lower() == "true":
        return
    known: dict[str, str] = {}
    for topic in topics:
        other = known.setdefault(topic.lower(), topic)
        if other != topic:
            raise StoreConfigError(
                f"topics {other} and {topic} would be one view, because Spark's names ignore case: give each a call of "
                f"its own with another prefix (topics=[{topic!r}], prefix=...), or set {CASE_SENSITIVE} to true"
            )


def _topics(path: Place, options: dict[str, Any]) -> list[str]:
    """The topics of the stores that a path names; the stores must be on this host."""
    parsed = parse(
        {**{name: str(value) for name, value in options.items()}, "path": os.fspath(path)}, stream=False
    )
    found = set()
    for store in parsed.paths():
        with open_reading(store, parsed) as opened:
            found |= {topic for topic, _ in opened.snapshot().queue_ranges}
    if not found and parsed.urls():
        raise StoreConfigError("a URL does not tell the topics of a store: name them")
    return sorted(topic for topic in found if not topic.startswith(LMQ_PREFIX))


def _listed(name: str, value: Names) -> str:
    listed = [value] if isinstance(value, str) else list(value)
    if not listed or not all(isinstance(one, str) for one in listed):
        raise StoreConfigError(f"{name} must be a name or several, not {value!r}")
    return ",".join(listed)


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run at once, if Spark tells it; otherwise the number of this host's processors."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except (PySparkAttributeError, PySparkNotImplementedError):  # Spark Connect has no context
        return len(os.sched_getaffinity(0))
