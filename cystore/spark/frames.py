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
from cystore.spark.options import parse
from cystore.spark.source.plan import open_reading

Names = str | Sequence[str]
Place = str | os.PathLike[str]
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
    """The messages of a store (or of all that a glob or URL names) as a DataFrame: of one `topic` or several, with
    the `columns` named (default: all), and only those with one of the `tags`, or `key`. `options` are others of the
    source. Raises StoreConfigError."""
    given = {name: str(value) for name, value in options.items()}
    for name, value in (("topic", topic), ("columns", columns), ("tags", tags), ("key", key)):
        if value != () and value != []:
            given[name] = _listed(name, value)
    given.setdefault("cores", str(cores_of(spark)))
    parse({**given, "path": os.fspath(path)}, stream=False)
    return spark.read.format("cystore").options(**given).load(os.fspath(path))


def count(spark: SparkSession, path: Place, topic: Names = (), **options: Any) -> int:
    """The number of messages of `table` with these arguments. Decodes one number of each, and nothing else."""
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
    """Registers a temporary view for each topic (default: all that the store has now), called like the topic behind
    `prefix`. Returns the names by topic, quoted as SQL wants them. Each view has the `columns` named. Raises
    StoreConfigError."""
    names = _topics(path, options) if topics is None else list(topics)
    made = {}
    for topic in names:
        made[topic] = f"`{prefix}{topic}`"
        table(spark, path, topic, columns=columns, **options).createOrReplaceTempView(made[topic])
    return made


def _topics(path: Place, options: dict[str, Any]) -> list[str]:
    """Of the stores that a path names, which must be on this host."""
    parsed = parse(
        {**{name: str(value) for name, value in options.items()}, "path": os.fspath(path)}, stream=False
    )
    found = set()
    for store in parsed.paths():
        with open_reading(store, parsed) as opened:
            found |= {topic for topic, _ in opened.snapshot().queue_ranges}
    if not found and parsed.urls():
        raise StoreConfigError("a URL does not tell the topics of a store: name them")
    return sorted(found)


def _listed(name: str, value: Names) -> str:
    listed = [value] if isinstance(value, str) else list(value)
    if not listed or not all(isinstance(one, str) for one in listed):
        raise StoreConfigError(f"{name} must be a name or several, not {value!r}")
    return ",".join(listed)


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run at once, as far as Spark says."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except (PySparkAttributeError, PySparkNotImplementedError):  # Spark Connect has no context
        return len(os.sched_getaffinity(0))
