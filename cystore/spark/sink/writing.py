"""Writes a DataFrame or a stream: tasks stage rows (`write`), the driver commits or aborts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cystore.errors import StoreConfigError
from cystore.spark.sink.commit import Commit, abort, all_there
from cystore.spark.sink.rows import RowEncoder, check_columns
from cystore.spark.sink.staged_rows import ANONYMOUS, TaskMessage, stage
from cystore.spark.sink.write_options import WriteOptions

# Spark's names for a task's stream query, the execution of its query, and the execution that started that one.
QUERY_ID = "sql.streaming.queryId"
EXECUTION_ID, ROOT_EXECUTION_ID = "spark.sql.execution.id", "spark.sql.execution.root.id"


def staged_by_task(
    folder: Path, options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    """A task's work: stages its rows."""
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    encoder = RowEncoder(options.topic, options.config, task)
    staged = stage(folder, batches, encoder)
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    return TaskMessage(task, staged, encoder.largest_bytes, query)


def refuse_new_table() -> None:
    """Called in a task. Raises StoreConfigError if the rows are for a table that is being made, because no query could
    read that table.

    Spark asks for the same writer with the same options for save(path) and for saveAsTable with a path. But it writes
    the rows of a new table in a separate execution, within the execution that makes the table. Spark drops the table if
    its tasks fail. In foreachBatch, every write is within the execution of the micro-batch."""
    context = TaskContext.get()
    if context is None or context.getLocalProperty(QUERY_ID) is not None:
        return
    if context.getLocalProperty(EXECUTION_ID) != context.getLocalProperty(ROOT_EXECUTION_ID):
        raise StoreConfigError(
            "saveAsTable and writeTo(...).create() would make a table that cannot be read, because Spark does not give "
            "a Python data source the table's path. Write the rows with "
            'df.write.format("cystore").mode("append").save("/var/lib/app/store"), and make the table with '
            "CREATE TABLE name USING cystore OPTIONS (path '/var/lib/app/store')"
        )


class BatchWriter(DataSourceArrowWriter):
    """The writer of one job. Spark makes it on the driver; copies of it stage rows in tasks, and one copy commits."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        name = f"{ANONYMOUS}{uuid.uuid4().hex}" if options.sink is None else options.sink.id
        self._folder = Path(options.staging, name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        refuse_new_table()
        return staged_by_task(self._folder, self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits the rows. Called on the driver when every task is done."""
        Commit(self._options, self._folder, all_there(messages), self._options.version).run()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed."""
        abort(self._options, self._folder, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a query. Spark makes a new one for each commit, so they share only the sink's name."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        if options.sink is None:
            raise StoreConfigError("a stream needs a name: give option sinkId or checkpointLocation")
        self._options = options
        self._folder = Path(options.staging, options.sink.id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return staged_by_task(self._folder, self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commits a micro-batch. Called on the driver when all its tasks are done; after a restart, the same batch may
        come again."""
        Commit(self._options, self._folder, all_there(messages), batchId).run()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when a task or the commit failed."""
        abort(self._options, self._folder, messages)
