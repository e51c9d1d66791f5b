"""The sink without a JVM: what tasks and driver call, in the order in which Spark calls it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

import cystore
from cystore.spark.data_source import CystoreDataSource
from cystore.spark.sink import commit
from tests.support.child import in_child
from tests.support.small_stores import SETTINGS
from tests.support.spark.programs import SMALL

ROW = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("value", pa.binary())])


def rows(first: int, count: int) -> pa.RecordBatch:
    """Messages that tell their number, in two queues of one topic."""
    numbers = range(first, first + count)
    columns = [["T"] * count, [number % 2 for number in numbers], [b"%d" % number for number in numbers]]
    return pa.record_batch(columns, schema=ROW)


def writer(store: Path | str, *, stream: bool, schema: pa.Schema = ROW, **options: Any) -> Any:
    """Spark's, for a DataFrame with these columns."""
    given = {"path": str(store), **SMALL, **{name: str(value) for name, value in options.items()}}
    source, columns = CystoreDataSource(given), from_arrow_schema(schema)
    if stream:
        return source.streamWriter(schema=columns, overwrite=False)
    return source.writer(schema=columns, overwrite=False)


def stage(made: Any, tasks: Iterable[Sequence[pa.RecordBatch]]) -> list[Any]:
    """The tasks' messages to the driver for these record batches."""
    return [made.write(iter(batches)) for batches in tasks]


def stream_batch(
    store: Path | str, batch: int, tasks: Iterable[Sequence[pa.RecordBatch]], **options: Any
) -> None:
    """One micro-batch: tasks, then the commit, by a writer of its own as in Spark."""
    options = {"sinkId": "sink", **options}
    told = stage(writer(store, stream=True, **options), tasks)
    writer(store, stream=True, **options).commit(told, batch)


def numbers(store: Any) -> dict[int, list[int]]:
    """The numbers in each queue of the topic, in their order."""
    found: dict[int, list[int]] = {}
    for message in store.scan():
        if message.topic == "T":
            found.setdefault(message.queue_id, []).append(int(bytes(message.body)))
    return found


def die_at(place: str, work: Any) -> int:
    """Exit code of a forked child that does `work` and is killed at a failpoint on its way: -9, or 0 where it did not
    get there."""

    def doomed() -> None:
        os.environ["CYSTORE_FAILPOINT"] = place
        work()

    return in_child(doomed)


def killed_then_repeated(folder: str, place: str) -> dict[str, Any]:
    """A stream's second batch, killed at a failpoint, and repeated as Spark does it: its rows come in another order
    then."""
    store = Path(folder) / "store"
    tasks = [[rows(100, 60), rows(160, 40)], [], [rows(200, 100)]]
    commit.CHUNK_ROWS = 32
    stream_batch(store, 0, [[rows(0, 100)]])
    code = die_at(place, lambda: stream_batch(store, 1, tasks))
    with cystore.open(store, **SETTINGS) as opened:  # what another program appends meanwhile
        opened.put_many([cystore.Message(topic="other", body=b"x" * 100) for _ in range(30)], flush="sync")
    stream_batch(store, 1, tasks[::-1])
    stream_batch(store, 2, [[rows(300, 10)]])
    with cystore.open(store, **SETTINGS) as opened:
        found = numbers(opened)
    left = [path.name for path in store.parent.rglob("*.rows")]
    return {"code": code, "numbers": found, "left": left}
