"""Stores that are read by URL, from the plan to the rows: no executor needs the store's host or its folders.

A task reads whole segments, because only the store's host, or a walk, knows where records begin inside a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cystore.columns.arrow import ReadSettings, RowFilter, plan_ranges
from cystore.columns.object_store import ObjectStore, in_parallel
from cystore.columns.sealed import SealedLog, read_sealed
from cystore.derived.reading.snapshot import LogRun, packed, runs_of
from cystore.spark.options import ReadOptions
from cystore.spark.source.plan import piece_bytes, queue_rules


@dataclass
class UrlPartition(InputPartition):
    """The input of one task: segments of one store, by URL."""

    runs: tuple[LogRun, ...]
    rows: RowFilter
    object_store: ObjectStore = field(repr=False)

    def read(self, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ranges = (part for run in self.runs for part in run.ranges())
        return read_sealed(ranges, replace(settings, rows=self.rows), self.object_store)


def url_partitions(options: ReadOptions, rows: RowFilter) -> list[InputPartition]:
    """The partitions of a batch: the segments that are sealed now."""
    places = options.urls()
    least = None if options.min_partitions is None else -(-options.min_partitions // max(1, len(places)))

    def planned(place: tuple[ObjectStore, str]) -> list[UrlPartition]:
        object_store, url = place
        log = SealedLog(object_store, url, fail_on_data_loss=options.fail_on_data_loss)
        wanted = queue_rules(options, log, rows)
        ranges = plan_ranges(log, wanted)
        size = piece_bytes(sum(part.size_bytes for part in ranges), least, stores=len(places))
        packs = packed(ranges, size, at_most=least is not None)
        return [UrlPartition(runs_of(pack), wanted, object_store) for pack in packs]

    return [one for found in in_parallel(planned, places) for one in found]
