"""Consume queues, their extension, the index, the offset tables.

May import `cystore.derived` and what is below it: docs/architecture.md.
"""
