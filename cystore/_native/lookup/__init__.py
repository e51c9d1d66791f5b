"""Kernels that find messages by queue offset and by key, also in the part of the log that is not dispatched yet.

May import `cystore._native.scan` and what is below it: docs/architecture.md.
"""
