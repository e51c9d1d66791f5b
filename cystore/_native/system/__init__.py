"""Kernels that call the operating system: descriptors, mappings, failpoints.

May import `cystore._native` and what is below it: docs/architecture.md.
"""
