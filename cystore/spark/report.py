"""Numbers of tasks from the lifecycle log: by task name and hour, the most frequent failures, the longest workflows.

`hourly`, `daily`, `names`, `workers`, `tracebacks` and `workflows` give DataFrames over `task_runs`; from
`task_events`, they first make the runs. `live` is the hourly table over a stream of events.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cystore.reports.task_layout import RETRIED, UNCOUNTED
from cystore.spark.task_events import ended, failed
from cystore.spark.task_runs import runs_of, seconds_between

ACCURACY = 10_000  # of percentiles: the rank is right to 0.01 %
PERCENTILES = (0.5, 0.95, 0.99)
COUNTS = ("count", "failed", "failure_rate", "retried")


def hourly(runs: DataFrame) -> DataFrame:
    """Numbers by `name` and the `hour` in which attempts ended: `count` of runs, `failed`, `failure_rate` (0 to 1),
    `retried`, and percentiles, in seconds, of the runtime and of the wait. The wait is the time from a message's
    sending to the begin of the task's code."""
    return _numbers(runs, "name", hour=F.timestamp_seconds(F.floor(F.unix_seconds("ended") / 3600) * 3600))


def daily(runs: DataFrame) -> DataFrame:
    """The same numbers by `name` and the `date` (UTC) on which attempts ended."""
    days = F.floor(F.unix_seconds("ended") / 86400).cast("int")
    return _numbers(runs, "name", date=F.date_from_unix_date(days))


def names(runs: DataFrame) -> DataFrame:
    """The same numbers by `name`, the most frequent first."""
    return _numbers(runs, "name").orderBy(F.desc("count"), "name")


def workers(runs: DataFrame) -> DataFrame:
    """The same numbers by `worker`, the worker with the most runs first."""
    return _numbers(runs, "worker").orderBy(F.desc("count"), "worker")


def _numbers(runs: DataFrame, by: str, **more: Column) -> DataFrame:
    over = runs_of(runs).where(F.col(by).isNotNull() & ~F.col("outcome").isin(*UNCOUNTED))
    retried = F.col("outcome") == RETRIED
    done = F.count_if(~retried)
    found = over.groupBy(by, *(column.alias(name) for name, column in more.items())).agg(
        done.alias("count"),
        F.count_if(F.col("failed")).alias("failed"),
        F.when(done > 0, F.count_if(F.col("failed")) / done).alias("failure_rate"),
        F.count_if(retried).alias("retried"),
        _percentiles("runtime", F.when(~retried, F.col("runtime"))),
        _percentiles("wait", F.col("wait")),
    )
    return found.select(by, *more, *COUNTS, *_each("runtime"), *_each("wait"))


def _run_numbers() -> list[Column]:
    done = F.count_if(ended())
    return [
        done.alias("count"),
        F.count_if(failed()).alias("failed"),
        F.when(done > 0, F.count_if(failed()) / done).alias("failure_rate"),
        F.count_if(F.col("event") == RETRIED).alias("retried"),
        _percentiles("runtime", F.when(ended(), F.col("runtime"))),
    ]


def _percentiles(name: str, of: Column) -> Column:
    """All percentiles as one list, so that Spark visits each number once."""
    return F.percentile_approx(of, list(PERCENTILES), ACCURACY).alias(f"{name}_percentiles")


def _each(name: str) -> list[Column]:
    lists = F.col(f"{name}_percentiles")
    return [F.get(lists, F.lit(at)).alias(f"{name}_p{round(100 * p)}") for at, p in enumerate(PERCENTILES)]


def tracebacks(runs: DataFrame, top: int = 20) -> DataFrame:
    """Failures of the same task with the same fingerprint: `count`, first and last time, the newest exception, its
    traceback and task id; the most frequent first."""
    return (
        runs_of(runs)
        .where("failed")
        .groupBy("name", "class", "fingerprint")
        .agg(
            F.count("*").alias("count"),
            F.min("ended").alias("first"),
            F.max("ended").alias("last"),
            # Several may end in one millisecond: then the task id decides, so that two reports are alike.
            *(
                F.max_by(one, F.struct("ended", "task_id")).alias(one)
                for one in ("exception", "traceback", "task_id")
            ),
        )
        .orderBy(F.desc("count"), F.desc("last"), "name", "fingerprint")
        .limit(top)
    )


def workflows(runs: DataFrame, top: int = 20) -> DataFrame:
    """A row for each root task and all its descendants: `name` of the root, `begin`, `seconds` until the last task
    ended, `tasks`, `failed`. Those of several tasks come first, the longest of them before others."""
    begin = F.min(F.least("sent", "received", "started", "ended"))
    last = F.max(F.when(F.col("outcome") != RETRIED, F.col("ended")))
    return (
        runs_of(runs)
        .where(F.col("root_id").isNotNull())
        .groupBy("root_id")
        .agg(
            F.max(F.when(F.col("task_id") == F.col("root_id"), F.col("name"))).alias("name"),
            begin.alias("begin"),
            seconds_between(begin, last).alias("seconds"),
            F.count_distinct("task_id").alias("tasks"),
            F.count_if(F.col("failed")).alias("failed"),
        )
        .where("seconds IS NOT NULL")
        .orderBy(F.col("tasks") == 1, F.desc("seconds"), "root_id")  # a task by itself is hardly a workflow
        .limit(top)
    )


def unfinished(runs: DataFrame, top: int = 20) -> DataFrame:
    """Tasks whose newest attempt has no end: `name`, `task_id`, `retries`, `state` (sent, received, started), `since`
    its first event, `worker`, and `total`, their number; the oldest first."""
    kept = ("name", "retries", "sent", "received", "started", "outcome", "worker")
    newest = runs_of(runs).groupBy("task_id").agg(F.max_by(F.struct(*kept), "retries").alias("newest"))
    found = newest.select("task_id", "newest.*").where("outcome IS NULL")
    state = F.when(F.col("started").isNotNull(), "started").when(F.col("received").isNotNull(), "received")
    since = F.least("sent", "received", "started").alias("since")
    shown = found.select(
        "name", "task_id", "retries", state.otherwise("sent").alias("state"), since, "worker"
    )
    total = found.agg(F.count("*").alias("total"))
    return shown.orderBy("since", "task_id").limit(top).crossJoin(total).orderBy("since", "task_id")


def live(events: DataFrame, window: str = "1 minute", watermark: str = "10 minutes") -> DataFrame:
    """The numbers of runs by `name` and window, from a stream of events. A window gets its row when an event arrives
    that is later than the window's end by `watermark`.

    There are no waits: a wait needs two events of a task, which may be hours apart.
    """
    return (
        events.where(F.col("name").isNotNull() & (ended() | (F.col("event") == RETRIED)))
        .withWatermark("time", watermark)
        .groupBy(F.window("time", window), "name")
        .agg(*_run_numbers())
        .select(
            F.col("window.start").alias("begin"),
            F.col("window.end").alias("end"),
            *("name", *COUNTS),
            *_each("runtime"),
        )
    )
