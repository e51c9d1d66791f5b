"""Kernels of shared memory: control block, locks, mapped files, clock.

May import `cystore._native.system` and what is below it: docs/architecture.md.
"""
