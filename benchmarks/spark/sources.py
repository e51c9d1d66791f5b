"""Other ways to bring the rows of a store to Spark. `python -m benchmarks.spark.scan` compares the source with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import cystore
from cystore.columns import arrow
from cystore.derived.reading.snapshot import LogRange
from cystore.spark.data_source import CystoreDataSource
from cystore.spark.options import parse
from cystore.spark.source.batch import BatchReader
from cystore.spark.source.reading import read_settings


class _TupleReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            columns = [
                map(dict, column.to_pylist()) if pa.types.is_map(column.type) else column.to_pylist()
                for column in batch.columns
            ]
            yield from zip(*columns, strict=True)


class TupleSource(CystoreDataSource):
    """The same reader, but its rows are handed over as Python tuples instead of Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "cystore_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options, stream=False)
        return _TupleReader(options, read_settings(options, schema), schema)


@dataclass
class _Rows(InputPartition):
    store: str
    rows: int


class _ReadyReader(DataSourceReader):
    def __init__(self, store: str, rows: int, tasks: int, batch_rows: int, schema: StructType) -> None:
        self._store, self._rows, self._tasks, self._schema = store, rows, tasks, schema
        self._batch_rows = batch_rows

    def partitions(self) -> list[InputPartition]:
        ends = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [_Rows(self._store, end - begin) for begin, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        left = partition.rows
        batch = self._batch(partition.store, max(1, min(left, self._batch_rows)))
        while True:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    def _batch(self, store: str, rows: int) -> pa.RecordBatch:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        reader, found, count = cystore.to_arrow(store, columns=schema.names), [], 0
        while count < rows:
            found.append(reader.read_next_batch())
            count += found[-1].num_rows
        (batch,) = pa.Table.from_batches(found).combine_chunks().slice(0, rows).to_batches()
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class ReadySource(CystoreDataSource):
    """Some rows (option `rows`) in some tasks (option `tasks`): a batch of the store's first ones (option
    `batchRows`), again and again.

    It reads no log, so its time is the cost of any Python data source in Spark, before its own work.
    """

    @classmethod
    def name(cls) -> str:
        return "cystore_ready"

    def schema(self) -> StructType:
        return CystoreDataSource({"path": self.options["path"]}).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        numbers = (int(self.options[name]) for name in ("rows", "tasks", "batchrows"))
        return _ReadyReader(self.options["path"], *numbers, schema)


def binary_files(spark: Any, store: Path, schema: StructType) -> Any:
    """The segments as Spark's source binaryFile reads them, decoded in mapInArrow."""
    with cystore.open(store, services="none", read_only=True) as opened:
        ranges = arrow.plan_ranges(opened.snapshot(), arrow.RowFilter())
    files = spark.read.format("binaryFile").load([part.path for part in ranges])
    return files.select("path", "content").mapInArrow(_decoder(ranges, schema), schema)


def _decoder(
    ranges: list[LogRange], schema: StructType
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    parts = {Path(part.path).name: part for part in ranges}
    settings = arrow.ReadSettings(columns=tuple(schema.fieldNames()))

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch["path"], batch["content"], strict=True):
                part = parts[path.as_py().rpartition("/")[2]]
                data = memoryview(content.as_buffer()).cast("B")
                yield from arrow.read_range(part, data, part.base, settings)

    return decode
