"""Kernels that read many records: scans, columns, queues, keys.

May import `cystore._native.derived` and what is below it: docs/architecture.md.
"""
