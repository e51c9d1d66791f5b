"""Writes: tasks stage rows, the driver commits.

May import `cystore.spark.source` and what is below it: docs/architecture.md.
"""
