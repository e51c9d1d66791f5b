"""The report's tables computed in this process, for small logs.

Without a session this process also reads the log; that takes less time than the start of a session. In a session,
Spark's tasks read the log, and only the attempts come here. They are packed, because Spark would split each batch into
rows; and Spark's own aggregation of so few rows costs more than all other work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from cystore.columns.object_store import is_url
from cystore.reports.attempts import SCHEMA
from cystore.reports.report import Asked, tables_in_threads
from cystore.reports.report_tables import tables_of
from cystore.spark.jobs.running import run_parts
from cystore.spark.options import parse
from cystore.spark.source.plan import LogPartition
from cystore.spark.source.task_reader import AttemptReader, attempts_schema

# Bytes of log: about 5 million events, whose attempts take about 500 MB. Packed, they stay below the size of results
# that Spark lets a driver collect (1 GiB).
SMALL_BYTES = 2 << 30


def is_small(stores: str | Sequence[str], options: Mapping[str, str]) -> bool:
    """Whether the log is on this host, with at most SMALL_BYTES to read."""
    if any(map(is_url, [stores] if isinstance(stores, str) else stores)):
        return False  # to be listed by the session's host, not by this one
    parts = _reader(stores, options).partitions()
    if not all(isinstance(part, LogPartition) for part in parts):
        return False
    return sum(part.size_bytes for part in parts if isinstance(part, LogPartition)) <= SMALL_BYTES


def tables_here(stores: str | Sequence[str], options: Mapping[str, str], top: int) -> dict[str, pa.Table]:
    """The tables of the report, read by this process: archives too."""
    reader = _reader(stores, options)
    return tables_in_threads(reader.partitions(), reader.read, Asked(top=top))


def tables_collected(
    spark: SparkSession, stores: str | Sequence[str], options: Mapping[str, str], top: int
) -> dict[str, pa.Table]:
    """The tables of the report. Spark's tasks read the log; this process collects the attempts and counts them."""
    reader = _reader(stores, options)

    def read(part: InputPartition) -> bytes:
        return _packed(reader.read(part))

    found = run_parts(spark, "report", reader.partitions(), read)
    return tables_of([batch for packed in found for batch in pa.ipc.open_stream(packed)], top)


def _packed(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Attempts as a compressed Arrow stream, which Spark passes on unchanged."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        for batch in batches:
            stream.write_batch(batch.cast(SCHEMA))
    return sink.getvalue().to_pybytes()


def _reader(stores: str | Sequence[str], options: Mapping[str, str]) -> AttemptReader:
    paths = [stores] if isinstance(stores, str) else list(stores)
    given = {**options, "paths": json.dumps(paths), "taskAttempts": "true"}
    parsed = parse(given, stream=False)
    return AttemptReader(parsed, attempts_schema(parsed))
