"""Shared by batches and streams: the columns, and the work of a task on its partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from cystore.columns.arrow import COLUMNS, DAMAGE_COLUMNS, ReadSettings, read_ranges
from cystore.errors import StoreConfigError
from cystore.spark.options import ReadOptions
from cystore.spark.source.by_url import UrlPartition
from cystore.spark.source.included_archive import ArchivePartition
from cystore.spark.source.plan import LogPartition


def known_columns(options: ReadOptions) -> dict[str, pa.DataType]:
    """Names and types of all columns that these options give."""
    return {**COLUMNS, **DAMAGE_COLUMNS} if options.on_corruption == "column" else COLUMNS


def chosen_columns(options: ReadOptions) -> dict[str, pa.DataType]:
    """The columns of option `columns`, in its order; without the option, all. Raises StoreConfigError."""
    known = known_columns(options)
    unknown = [name for name in options.columns if name not in known]
    if unknown or len(set(options.columns)) != len(options.columns):
        raise StoreConfigError(
            f"columns must name columns, each once, not {','.join(options.columns)}; the columns are {', '.join(known)}"
        )
    return {name: known[name] for name in options.columns or known}


def read_settings(options: ReadOptions, schema: StructType) -> ReadSettings:
    """The settings for the columns of a schema: all columns, or those of `.schema(...)`. Raises StoreConfigError for
    unknown columns and other types."""
    known = known_columns(options)
    chosen = chosen_columns(options)
    if options.columns and set(schema.fieldNames()) != set(chosen):
        raise StoreConfigError(
            f"option columns names {', '.join(chosen)}, the schema names {', '.join(schema.fieldNames())}: "
            "give only one of the two"
        )
    for column in schema.fields:
        if column.name not in known:
            hint = " (with onCorruption=column)" if column.name in DAMAGE_COLUMNS else ""
            raise StoreConfigError(f"no column {column.name}{hint}; the columns are {', '.join(known)}")
        kind = from_arrow_type(known[column.name])
        if column.dataType.simpleString() != kind.simpleString():
            raise StoreConfigError(
                f"column {column.name} is {kind.simpleString()}, not {column.dataType.simpleString()}; cast it "
                "after reading"
            )
    return ReadSettings(
        columns=tuple(schema.fieldNames()),
        check_checksum=options.check_checksum,
        on_corruption=options.on_corruption,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def read_partition(
    partition: InputPartition, settings: ReadSettings, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """A task's record batches, with exactly the types that Spark expects."""
    if isinstance(partition, LogPartition):
        batches = read_ranges(partition.ranges, replace(settings, rows=partition.rows))
    elif isinstance(partition, (ArchivePartition, UrlPartition)):
        batches = partition.read(settings)
    else:
        return  # Spark makes its own if a plan has none
    spark_schema = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=spark_schema)
