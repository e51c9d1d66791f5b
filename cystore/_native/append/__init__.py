"""Kernels that append records to the log.

May import `cystore._native.record` and what is below it: docs/architecture.md.
"""
