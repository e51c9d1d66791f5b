"""The data source that Spark sees."""

from __future__ import annotations

import json
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

from cystore.spark.batch import BatchReader
from cystore.spark.options import parse, parse_any
from cystore.spark.reading import known_columns, read_settings
from cystore.spark.stream import StreamReader
from cystore.spark.write_options import parse_write
from cystore.spark.writing import BatchWriter, StreamWriter

OPTIONS = "cystore.options"  # name of a table's options among the metadata of its first column


class CystoreDataSource(DataSource):
    """`format("cystore")`: the messages of one or several stores."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)` and behind `USING`."""
        return "cystore"

    def schema(self) -> StructType:
        """All columns. Bad options and missing stores are refused here, so `load` refuses them."""
        options = parse_any(self.options)
        options.check_places()
        schema = from_arrow_schema(pa.schema(list(known_columns(options).items())))
        if "provider" in self.options:
            schema.fields[0].metadata = {OPTIONS: json.dumps(dict(self.options))}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        options = parse(self._options_for(schema), stream=False)
        return BatchReader(options, read_settings(options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads micro-batches."""
        options = parse(self._options_for(schema), stream=True)
        return StreamReader(options, read_settings(options, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes a batch."""
        return BatchWriter(parse_write(self._options_for(schema), overwrite=overwrite, stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writes micro-batches."""
        return StreamWriter(parse_write(self.options, overwrite=overwrite, stream=True), schema)

    def _options_for(self, schema: StructType) -> dict[str, str]:
        """Spark 4.3 reads a table that CREATE TABLE made without the table's options, but with its schema: they are in there."""
        told: dict[str, str] = json.loads((schema.fields[0].metadata or {}).get(OPTIONS, "{}"))
        return {**told, **self.options}
