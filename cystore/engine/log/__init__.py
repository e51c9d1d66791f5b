"""The commit log: append policy, flush, allocation, cleaning, disk space.

May import `cystore.engine.manifest` and what is below it: docs/architecture.md.
"""
