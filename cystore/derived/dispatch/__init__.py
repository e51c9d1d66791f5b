"""Dispatch of the log into the files, flush, removal, online repair.

May import `cystore.derived.files` and what is below it: docs/architecture.md.
"""
