"""The data source that Spark sees."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from cystore.errors import StoreError
from cystore.spark import tables
from cystore.spark.options import parse, parse_any
from cystore.spark.sink.write_options import parse_write
from cystore.spark.sink.writing import BatchWriter, StreamWriter
from cystore.spark.source.batch import BatchReader
from cystore.spark.source.reading import chosen_columns, read_settings
from cystore.spark.source.refused_stream import RefusedStream
from cystore.spark.source.stream import StreamReader
from cystore.spark.source.task_reader import AttemptReader, attempts_schema


class CystoreDataSource(DataSource):
    """`format("cystore")`: the messages of one or several stores."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)` and after `USING`."""
        return "cystore"

    def schema(self) -> StructType:
        """All columns, or those of option `columns`. Refuses bad options and missing stores, so that `load` does."""
        options = parse_any(self.options)
        options.check_places()
        if options.task_attempts:
            schema = attempts_schema(options)
        else:
            schema = from_arrow_schema(pa.schema(list(chosen_columns(options).items())))
        if tables.is_table(self.options):
            tables.remember(self.options, schema)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        options = parse(tables.read_options(self.options, schema), stream=False)
        if options.task_attempts:
            return AttemptReader(options, schema)
        return BatchReader(options, read_settings(options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads micro-batches. Wrong options raise an error when the query starts."""
        try:
            options = parse(tables.read_options(self.options, schema), stream=True)
            return StreamReader(options, read_settings(options, schema), schema)
        except StoreError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes a batch."""
        options = tables.write_options(self.options, schema)
        return BatchWriter(parse_write(options, overwrite=overwrite, stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writes micro-batches."""
        return StreamWriter(parse_write(self.options, overwrite=overwrite, stream=True), schema)
