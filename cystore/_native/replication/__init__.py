"""Kernels that ship the log to other stores, and receive it: the part of a connection that repeats.

May import `cystore._native.append` and what is below it: docs/architecture.md.
"""
