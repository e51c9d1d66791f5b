"""What tasks did, from the lifecycle log: by task name and hour, the failures that come most often, the workflows that took longest.

`hourly`, `names`, `tracebacks` and `workflows` are DataFrames over `task_events`; `live` is the hourly table as a stream.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cystore.spark.task_events import RECEIVED, REDELIVERED, RETRIED, SENT, STARTED, ended, failed

ACCURACY = 10_000  # of percentiles: the rank is right to 0.01 %
PERCENTILES = (0.5, 0.95, 0.99)
NUMBERS = (
    "count",
    "failed",
    "failure_rate",
    "retried",
    *(f"{what}_p{round(100 * p)}" for what in ("runtime", "wait") for p in PERCENTILES),
)


def hourly(events: DataFrame) -> DataFrame:
    """By `name` and `hour`: `count` of runs that ended, `failed`, `failure_rate` (0 to 1), `retried`, and percentiles in seconds of
    the runtime and of the wait between a message's sending and the moment when the task's code began."""
    return _numbers(events, F.timestamp_seconds(F.floor(F.unix_seconds("time") / 3600) * 3600).alias("hour"))


def names(events: DataFrame) -> DataFrame:
    """The same numbers by `name`, those that ran most often first."""
    return _numbers(events).orderBy(F.desc("count"), "name")


def _numbers(events: DataFrame, *more: Column) -> DataFrame:
    told = events.where(F.col("name").isNotNull())
    runs = told.groupBy("name", *more).agg(*_run_numbers())
    waited = waits(told).groupBy("name", *more).agg(*_percentiles("wait"))
    by = ["name", *(("hour",) if more else ())]
    return runs.join(waited, by, "left").where("count > 0 OR retried > 0").select(*by, *NUMBERS)


def _run_numbers() -> list[Column]:
    done = F.count_if(ended())
    return [
        done.alias("count"),
        F.count_if(failed()).alias("failed"),
        F.when(done > 0, F.count_if(failed()) / done).alias("failure_rate"),
        F.count_if(F.col("event") == RETRIED).alias("retried"),
        *_percentiles("runtime", F.when(ended(), F.col("runtime"))),
    ]


def _percentiles(name: str, of: Column | None = None) -> list[Column]:
    of = F.col(name) if of is None else of
    return [F.percentile_approx(of, p, ACCURACY).alias(f"{name}_p{round(100 * p)}") for p in PERCENTILES]


def waits(events: DataFrame) -> DataFrame:
    """For each attempt of a task whose begin is known: `name`, `time` of it, and `wait`, the seconds since it was sent (where the log does
    not have that: received), or since its eta where that was later."""

    def first(*kinds: str) -> Column:
        return F.min(F.when(F.col("event").isin(*kinds), F.col("time")))

    attempts = (
        events.where(F.col("event").isin(SENT, RECEIVED, REDELIVERED, STARTED) & F.col("task_id").isNotNull())
        .groupBy("task_id", "retries")
        .agg(
            F.max("name").alias("name"),
            first(STARTED).alias("time"),
            F.coalesce(first(SENT), first(RECEIVED, REDELIVERED)).alias("since"),
            F.max(F.try_to_timestamp("eta")).alias("eta"),
        )
        .where("time IS NOT NULL AND since IS NOT NULL")
    )
    waited = _seconds("time") - _seconds(F.greatest("since", "eta"))
    return attempts.select("name", "time", F.greatest(waited, F.lit(0.0)).alias("wait"))


def _seconds(time: Column | str) -> Column:
    return F.unix_micros(time) / 1e6


def tracebacks(events: DataFrame, top: int = 20) -> DataFrame:
    """Failures that have the same task, exception class and traceback (but for addresses): `count`, first and last time, one traceback
    and one task id; the most frequent first."""
    where = F.regexp_replace(F.coalesce("traceback", F.lit("")), "0x[0-9a-fA-F]+", "0x…")
    return (
        events.where(failed())
        .withColumn("class", F.regexp_extract(F.coalesce("exception", "event"), r"^([\w.]*)", 1))
        .groupBy("name", "class", F.sha2(where, 256).alias("place"))
        .agg(
            F.count("*").alias("count"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
            F.max_by("exception", "time").alias("exception"),
            F.max_by("traceback", "time").alias("traceback"),
            F.max_by("task_id", "time").alias("task_id"),
        )
        .drop("place")
        .orderBy(F.desc("count"), F.desc("last"), "name")
        .limit(top)
    )


def workflows(events: DataFrame, top: int = 20) -> DataFrame:
    """Root tasks with what they set off: `name` of the root, `begin`, `seconds` until the last of its tasks ended, `tasks`, `failed`; the
    longest first."""
    return (
        events.where(F.col("root_id").isNotNull())
        .groupBy("root_id")
        .agg(
            F.max(F.when(F.col("task_id") == F.col("root_id"), F.col("name"))).alias("name"),
            F.min("time").alias("begin"),
            (_seconds(F.max(F.when(ended(), F.col("time")))) - _seconds(F.min("time"))).alias("seconds"),
            F.count_distinct("task_id").alias("tasks"),
            F.count_if(failed()).alias("failed"),
        )
        .where("seconds IS NOT NULL")
        .orderBy(F.desc("seconds"), "root_id")
        .limit(top)
    )


def live(events: DataFrame, window: str = "1 minute", watermark: str = "10 minutes") -> DataFrame:
    """The numbers of runs by `name` and `window`, of a stream of events: a window is told once events are so much later than its end.

    Waits are left out: they need two events of a task, which may be hours apart.
    """
    return (
        events.where(F.col("name").isNotNull() & (ended() | (F.col("event") == RETRIED)))
        .withWatermark("time", watermark)
        .groupBy(F.window("time", window), "name")
        .agg(*_run_numbers())
        .select(
            F.col("window.start").alias("begin"), F.col("window.end").alias("end"), "name", *_run_columns()
        )
    )


def _run_columns() -> list[str]:
    return [name for name in NUMBERS if not name.startswith("wait")]
