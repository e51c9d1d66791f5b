"""Reading: plan, partitions, batches, streams.

May import `cystore.spark.task_events` and what is below it: docs/architecture.md.
"""
