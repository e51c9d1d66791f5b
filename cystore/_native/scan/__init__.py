"""Kernels that read records in the order of the log: the walk over the log, records as columns.

May import `cystore._native.derived` and what is below it: docs/architecture.md.
"""
