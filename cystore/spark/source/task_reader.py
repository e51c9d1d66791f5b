"""Reads attempts of tasks instead of messages (option `taskAttempts`): each Spark task computes them from its part of
the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from cystore.columns.arrow import COLUMNS, ReadSettings
from cystore.errors import StoreConfigError
from cystore.reports import attempts
from cystore.reports.task_layout import TOPIC
from cystore.spark.options import ReadOptions
from cystore.spark.source.batch import BatchReader
from cystore.spark.source.reading import read_partition

_READ = from_arrow_schema(pa.schema([(name, COLUMNS[name]) for name in attempts.COLUMNS]))


def attempts_schema(options: ReadOptions) -> StructType:
    """The columns of attempts. Raises StoreConfigError for options that name other columns or topics."""
    if options.columns or options.on_corruption == "column":
        raise StoreConfigError(
            "taskAttempts has columns of its own: leave out columns and onCorruption=column"
        )
    if options.topics or options.topic_pattern is not None or options.assigned:
        raise StoreConfigError(f"taskAttempts reads the topic {TOPIC}: name no topic")
    return from_arrow_schema(attempts.SCHEMA)


class AttemptReader(BatchReader):
    """Makes the plan for messages of the lifecycle log; each Spark task yields attempts."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if schema != attempts_schema(options):
            raise StoreConfigError("taskAttempts has columns of its own: leave out .schema(...)")
        settings = ReadSettings(
            columns=attempts.COLUMNS,
            check_checksum=options.check_checksum,
            on_corruption=options.on_corruption,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        super().__init__(replace(options, topics=(TOPIC,)), settings, schema)
        self._end_ms = options.ending.timestamp_ms

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The attempts of one partition."""
        messages = read_partition(partition, self._settings, _READ)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        # In another queue, a message stored just before the end may follow it, so times are checked again.
        for batch in attempts.attempts(messages, self._end_ms):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
