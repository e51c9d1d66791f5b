"""Makes `format("cystore")` known to Spark: Spark looks for a `DefaultSource` in every module whose name begins with
pyspark_."""

from cystore.spark.data_source import CystoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
