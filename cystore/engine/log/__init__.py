"""The commit log: append policy, flush, allocation, cleaning, disk space.

May import `cystore.engine.pool` and what is below it: docs/architecture.md.
"""
