"""Kernels of the derived files: queues, index, dispatch, delay.

May import `cystore._native.replication` and what is below it: docs/architecture.md.
"""
