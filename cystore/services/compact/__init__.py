"""Compaction: the newest record of each key of some topics outlives the log's retention.

May import `cystore.services.retention` and what is below it: docs/architecture.md.
"""
