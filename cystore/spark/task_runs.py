"""Task runs: one row for each attempt of a task, computed from the events of the lifecycle log. All numbers of the
report come from these rows.

Events without a task id belong to no run. A kill of the job leaves nothing behind, because nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cystore.reports.fingerprints import classes, fingerprints
from cystore.reports.task_layout import (
    ENDS_OF_CODE,
    RECEIVED,
    REDELIVERED,
    RETRIED,
    SENT,
    STARTED,
    UNCOUNTED,
)
from cystore.spark.task_events import ended, failed

# Names and types of `task_runs`, in this order. Docs: docs/spark.md.
SCHEMA = (
    "name STRING, task_id STRING, retries INT, root_id STRING, sent TIMESTAMP, received TIMESTAMP, started "
    "TIMESTAMP, ended TIMESTAMP, "
    "wait DOUBLE, runtime DOUBLE, deliveries BIGINT, worker STRING, queue STRING, outcome STRING, failed "
    "BOOLEAN, class STRING, "
    "fingerprint STRING, exception STRING, traceback STRING, store STRING"
)
COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(", "))


def task_runs(events: DataFrame) -> DataFrame:
    """One row for each attempt: a `task_id` with a number of `retries`. Columns: SCHEMA.

    `wait` is the time in seconds until the attempt began. It counts from the sending (or the arrival at a worker, if
    the log lacks the sending), or from the eta if that is later. `outcome` is the event that ended the attempt (RETRIED
    is one); it is null until then. An end without `retries` belongs to the newest started attempt (`try_of`). In
    a stream it belongs to the first one, because Spark cannot look back there. `fingerprint` is the same for failures
    of one exception class at one place of the code.
    """
    given = set(events.columns)
    counted = ended() | (F.col("event") == RETRIED)
    over = counted | F.col("event").isin(*UNCOUNTED)
    last = F.when(over, F.struct(counted, "time"))

    def first(*kinds: str) -> Column:
        return F.min(F.when(F.col("event").isin(*kinds), F.col("time")))

    def at_end(name: str) -> Column:
        """A detail of the event that ended the attempt."""
        return F.max_by(F.when(over, F.col(name)), last)

    def any_of(name: str) -> Column:
        return F.max(name) if name in given else F.max(F.lit(None).cast("string"))

    known = events.where(F.col("task_id").isNotNull())
    if not events.isStreaming:
        lacking = F.col("event").isin(*ENDS_OF_CODE) & (F.col("retries") == 0)
        begun = F.when(F.col("event") == STARTED, F.col("time"))
        known = known.withColumn("retries", try_of(F.col("retries"), lacking, begun, F.col("time")))
    runs = known.groupBy("task_id", "retries").agg(
        F.max("name").alias("name"),
        F.max("root_id").alias("root_id"),
        first(SENT).alias("sent"),
        first(RECEIVED, REDELIVERED).alias("received"),
        first(STARTED).alias("started"),
        at_end("time").alias("ended"),
        at_end("runtime").alias("runtime"),
        F.count_if(F.col("event").isin(RECEIVED, REDELIVERED)).alias("deliveries"),
        any_of("worker").alias("worker"),
        any_of("queue").alias("queue"),
        F.max(F.try_to_timestamp("eta")).alias("eta"),
        at_end("event").alias("outcome"),
        F.coalesce(F.max_by(F.when(over, failed()), last), F.lit(False)).alias("failed"),
        at_end("exception").alias("exception"),
        at_end("traceback").alias("traceback"),
        any_of("store").alias("store"),
    )
    named = F.arrow_udf(classes, "string")("exception", "outcome")  # type: ignore[call-overload]
    runs = runs.withColumn("class", F.when(F.col("failed"), named))
    fingerprint = F.arrow_udf(fingerprints, "string")("class", "traceback")  # type: ignore[call-overload]
    return _with_waits(runs.withColumn("fingerprint", F.when(F.col("failed"), fingerprint)))


def read_runs(reader: Any, paths: str | Sequence[str], **options: str) -> DataFrame:
    """`task_runs` of stores, the fast way: Spark's tasks compute attempts while they read, and only attempts reach
    Spark. `reader` is `spark.read`; `options` are options of the source."""
    return joined(read_attempts(reader, paths, **options))


def read_attempts(reader: Any, paths: str | Sequence[str], **options: str) -> DataFrame:
    """The rows of `attempts.SCHEMA` of stores: an attempt has one row for each part of the log with events of it."""
    found = reader.format("cystore").options(**{**options, "taskAttempts": "true"})
    return found.load(paths if isinstance(paths, str) else list(paths))


def joined(parts: DataFrame) -> DataFrame:
    """Runs, merged from parts of the log (rows of `attempts.SCHEMA`)."""
    at_end = ("ended", "runtime", "outcome", "failed", "class", "fingerprint", "exception", "traceback")
    greatest = ("name", "root_id", "worker", "queue", "eta", "store")
    is_end = F.col("ended").isNotNull()
    counted = ~F.col("outcome").isin(*UNCOUNTED)
    retries, at = F.col("retries"), F.coalesce("last_started", "ended")
    known = parts.withColumn("retries", try_of(retries, retries.isNull(), F.col("last_started"), at))
    runs = known.groupBy("task_id", "retries").agg(
        *(F.min(name).alias(name) for name in ("sent", "received", "started")),
        F.sum("deliveries").alias("deliveries"),
        *(F.max(name).alias(name) for name in greatest),
        F.max_by(F.struct(*at_end), F.when(is_end, F.struct(counted, "ended"))).alias("end"),
    )
    told = [F.col(f"end.{name}").alias(name) for name in at_end if name != "failed"]
    failed = F.coalesce("end.failed", F.lit(False)).alias("failed")
    return _with_waits(runs.select("*", *told, failed))


def _with_waits(runs: DataFrame) -> DataFrame:
    since = F.greatest(F.coalesce("sent", "received"), "eta")
    known = F.col("started").isNotNull() & F.coalesce("sent", "received").isNotNull()
    wait = F.when(known, F.greatest(seconds_between(since, F.col("started")), F.lit(0.0)))
    return runs.withColumn("wait", wait).select(*COLUMNS)


def runs_of(frame: DataFrame) -> DataFrame:
    """The frame itself if it has runs; the runs of its events otherwise."""
    return frame if "outcome" in frame.columns else task_runs(frame)


def seconds_between(begin: Column, end: Column) -> Column:
    """The seconds between two times, exact to the microsecond."""
    return (F.unix_micros(end) - F.unix_micros(begin)) / 1e6


def try_of(retries: Column, lacking: Column, started: Column, at: Column) -> Column:
    """The try that an event belongs to (the rule of `cystore.reports.tries`), for rows in any order. `started` is the
    time of a try's begin, else null; `at` the time of the row. Without a begin the try is the first one."""
    before = Window.partitionBy("task_id").orderBy(at)
    before = before.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    begun = F.when(started.isNotNull(), F.struct(started.alias("at"), retries.alias("try")))
    newest = F.max(begun).over(before)["try"]
    return F.when(lacking, F.coalesce(newest, F.lit(0))).otherwise(retries)
