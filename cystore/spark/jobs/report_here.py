"""The report of a log that one process reads in less time than a Spark session takes to start."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from cystore.spark.options import parse
from cystore.spark.reports.report_tables import tables_of
from cystore.spark.source.plan import LogPartition
from cystore.spark.source.task_reader import AttemptReader, attempts_schema

SMALL_BYTES = 2 << 30  # of log; about 5 million events, whose attempts take about 500 MB


def is_small(stores: str | Sequence[str], options: Mapping[str, str]) -> bool:
    """Whether this process should read the log by itself: segments of this host, few enough."""
    parts = _reader(stores, options).partitions()
    if not all(isinstance(part, LogPartition) for part in parts):
        return False
    return sum(part.size_bytes for part in parts if isinstance(part, LogPartition)) <= SMALL_BYTES


def tables_here(stores: str | Sequence[str], options: Mapping[str, str], top: int) -> dict[str, pa.Table]:
    """The tables of the report, read with a thread for each core."""
    reader = _reader(stores, options)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        parts = threads.map(lambda part: list(reader.read(part)), reader.partitions())
        return tables_of([batch for part in parts for batch in part], top)


def _reader(stores: str | Sequence[str], options: Mapping[str, str]) -> AttemptReader:
    paths = [stores] if isinstance(stores, str) else list(stores)
    given = {**options, "paths": json.dumps(paths), "taskAttempts": "true"}
    parsed = parse(given, stream=False)
    return AttemptReader(parsed, attempts_schema(parsed))
