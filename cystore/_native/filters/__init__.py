"""Kernels that choose records by their properties.

May import `cystore._native.record` and what is below it: docs/architecture.md.
"""
