"""Records as columns: Arrow, Parquet, sealed segments, archive.

May import `cystore.metrics` and what is below it: docs/architecture.md.
"""
