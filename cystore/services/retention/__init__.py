"""The needs for old parts of the log: named holds, the archive's mark.

May import `cystore.services` and what is below it: docs/architecture.md.
"""
