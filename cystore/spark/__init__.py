"""The store in Apache Spark: `spark.read.format("cystore").load(path)`, and the same as a stream.

Nothing needs to be registered: Spark finds the module pyspark_cystore by its name.
"""
