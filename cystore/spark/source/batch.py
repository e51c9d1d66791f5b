"""Reads a batch, with filters if Spark pushes them down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cystore.columns.arrow import ReadSettings
from cystore.spark.options import ReadOptions
from cystore.spark.source.by_url import url_partitions
from cystore.spark.source.plan import base_filter, batch_partitions
from cystore.spark.source.pushdown import narrowed
from cystore.spark.source.reading import read_partition


class _Push:
    """`pushFilters` of a reader that also works if Spark pushes no filters.

    With spark.sql.python.filterPushdown.enabled off, Spark refuses a reader that overrides pushFilters, even if the
    reader does not need it. Spark checks the `__func__` of the bound method, so this object calls our method and shows
    the original.
    """

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class BatchReader(DataSourceReader):
    """Plans on the driver (`partitions`), reads in tasks (`read`)."""

    def __init__(self, options: ReadOptions, settings: ReadSettings, schema: StructType) -> None:
        self._options, self._settings, self._schema = options, settings, schema
        self._rows: Any = base_filter(options)

    @property
    def pushFilters(self) -> _Push:
        """Uses the filters, if option filterPushdown is set; Spark evaluates all of them in any case.

        The option is off by default: Spark 4.3 keeps a plan with its DataFrame, and reuses a plan with filters for a
        later query on the same DataFrame that pushes none. That query would miss rows.
        """
        return _Push(self._narrow)

    def _narrow(self, filters: list[Filter]) -> Iterable[Filter]:
        if self._options.filter_pushdown:
            self._rows = narrowed(self._rows, filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """The filter of the rows; None if no row can match."""
        if self._rows is None:
            return []
        local = batch_partitions(self._options, self._rows, self._settings)
        return [*local, *url_partitions(self._options, self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one partition."""
        return read_partition(partition, self._settings, self._schema)
