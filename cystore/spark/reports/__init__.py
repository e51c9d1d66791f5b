"""The report of a fleet: attempts, tables, plots, one HTML page.

May import `cystore.spark.task_events` and what is below it: docs/architecture.md.
"""
