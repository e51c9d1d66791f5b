"""Records as columns: Arrow, Parquet, sealed segments, archive.

May import `cystore` and what is below it: docs/architecture.md.
"""
