"""Segment files, their mappings, the checkpoint, the quarantine.

May import `cystore.engine` and what is below it: docs/architecture.md.
"""
