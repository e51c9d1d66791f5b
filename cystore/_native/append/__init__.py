"""Kernels that append records to the log.

May import `cystore._native.filters` and what is below it: docs/architecture.md.
"""
