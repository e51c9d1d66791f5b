"""`python -m benchmarks spark`: the time of usual queries of a store, on `local[2]`, warm.

SQL tables (two columns, `count(*)`, one key) beside a table with option `columns`, beside `cystore.spark.count` and
beside `cystore.scan`, which needs no Spark; the report on tasks, in a session and without; and archiving to Parquet,
to a Delta and to an Iceberg table, beside Spark's own copy of the same messages to Parquet, which verifies nothing.
Best wall time of some rounds, CPU seconds of this process and its children beside it. Needs a JDK 17 or newer.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import cystore
from benchmarks.spark.session import best, session
from benchmarks.store.columns import fill

SEGMENT_BYTES = 16 << 20
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/srv/app-{}/shop.py", line 17, in pay\nshop.Refused: {}'
)


def show(name: str, took: tuple[float, float], more: str = "") -> None:
    print(f"{name:<44} {took[0]:7.2f} s wall {took[1]:7.2f} s CPU  {more}".rstrip(), flush=True)


def fill_events(path: Path, count: int) -> None:
    """The lifecycle log of `count` events: four of each task, one in 50 tasks fails."""
    from cystore.celery.base import events, records

    def told(number: int) -> cystore.Message:
        task, step = divmod(number, 4)
        name, failed = f"shop.tasks.t{task % 40}", task % 50 == 0
        details: dict[str, Any] = {
            "worker": f"celery@host-{task % 8}",
            "queue": "celery",
            "args": "('x', 17)",
        }
        if step == 3:
            details["runtime"] = 0.001 * (task % 997)
        if step == 3 and failed:
            details |= {"exception": f"shop.Refused({task})", "traceback": TRACEBACK.format(task, task)}
        return cystore.Message(
            topic=events.EVENTS,
            body=events.body_of(details),
            queue_id=records.queue_of(name),
            keys=events.keys_of(f"{task:032x}"),
            tags=("SENT", "RECEIVED", "STARTED", "FAILED" if failed else "SUCCEEDED")[step],
            properties={"task": name},
        )

    with cystore.open(path, services="none") as store:
        messages = map(told, range(count))
        while batch := list(islice(messages, 10_000)):
            store.put_many(batch)
        store.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, one round")
    parser.add_argument("--count", type=int, default=2_000_000, help="messages (%(default)s)")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of tasks (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.events, options.rounds = options.count // 10, options.events // 10, 1
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        fill(folder / "store", options.count, 300)
        fill_events(folder / "events", options.events)
        spark = session(2, folder)
        print(f"{options.count:,} messages, {options.events:,} events, best of {options.rounds}")
        tables(spark, folder / "store", options.rounds)
        reports(spark, folder, options.rounds)
        archives(spark, folder, options.count, options.rounds)
        spark.stop()
    return 0


def tables(spark: Any, store: Path, rounds: int) -> None:
    import cystore.spark

    spark.sql(f"CREATE TABLE whole USING cystore OPTIONS (path '{store}')")
    spark.sql(f"CREATE TABLE narrow USING cystore OPTIONS (path '{store}', columns 'offset,timestamp')")
    key = next(iter(cystore.to_arrow(store, columns=["key"])))["key"][0].as_py()
    spark.sql(f"CREATE TABLE one USING cystore OPTIONS (path '{store}', key '{key}')")
    two, count = "SELECT max(offset), max(timestamp) FROM {}", "SELECT count(*) FROM {}"

    def sql(text: str) -> Callable[[], Any]:
        return lambda: spark.sql(text).collect()

    show("two columns, SQL table", best(rounds, sql(two.format("whole"))))
    show("two columns, SQL table with columns", best(rounds, sql(two.format("narrow"))))
    data = cystore.scan(store, columns=["offset", "timestamp"])
    show("two columns, cystore.scan", best(rounds, lambda: pc.max(data.to_table()["offset"])))
    show("count(*), SQL table", best(rounds, sql(count.format("whole"))))
    show("cystore.spark.count", best(rounds, lambda: cystore.spark.count(spark, store)))
    show("count_rows, cystore.scan", best(rounds, data.count_rows))
    show("one key, SQL table with key", best(rounds, sql("SELECT * FROM one")))


def reports(spark: Any, folder: Path, rounds: int) -> None:
    from cystore.spark.jobs.report import write_report

    def report(session_or_none: Any) -> None:
        shutil.rmtree(folder / "report", ignore_errors=True)
        write_report(session_or_none, str(folder / "events"), folder / "report")

    show("report, in a session", best(rounds, lambda: report(spark)))
    show("report, without a session", best(rounds, lambda: report(None)))


def archives(spark: Any, folder: Path, count: int, rounds: int) -> None:
    from cystore.spark.jobs.archive import archive

    settings = {"mapped_file_size_commit_log_bytes": SEGMENT_BYTES}
    store, copy = folder / "segments", folder / "copy"
    fill(store, count, 300, **settings)

    def archived(kind: str) -> None:
        with cystore.open(store, services="none", **settings) as opened:
            opened.archive_mark.end()
        shutil.rmtree(folder / "archive", ignore_errors=True)
        archive(spark, str(store), str(folder / "archive"), settings=settings, format=kind, all_sealed=True)

    def copied() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        spark.read.format("cystore").load(str(store)).write.option("compression", "zstd").parquet(str(copy))

    floor = best(rounds, copied)
    show("copy to Parquet by Spark, not verified", floor)
    for kind in ("parquet", "delta", "iceberg"):
        took = best(rounds, lambda kind=kind: archived(kind))
        show(f"archive to {kind}, verified", took, f"{took[0] / floor[0]:.2f} x the copy")


if __name__ == "__main__":
    raise SystemExit(main())
