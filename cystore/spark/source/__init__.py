"""Reading: plan, partitions, batches, streams.

May import `cystore.spark.reports` and what is below it: docs/architecture.md.
"""
