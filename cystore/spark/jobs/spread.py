"""Work in parts on executors. It uses only DataFrames, so it runs in a classic session and through Spark Connect."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

Part = TypeVar("Part")
Found = TypeVar("Found")


def spread(spark: SparkSession, parts: Sequence[Part], work: Callable[[Part], Found]) -> list[Found]:
    """The results of `work` for each part, in the parts' order; one task for each part. Parts and results are
    pickled."""
    if not parts:
        return []
    kept = list(parts)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                found = cloudpickle.dumps(work(kept[number]))
                yield pa.record_batch([pa.array([number]), pa.array([found])], names=["id", "found"])

    numbers = spark.range(0, len(kept), 1, len(kept))
    rows = numbers.mapInArrow(run, "id BIGINT, found BINARY").collect()
    return [pickle.loads(row.found) for row in sorted(rows, key=lambda row: row.id)]
