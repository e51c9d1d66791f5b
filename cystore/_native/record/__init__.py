"""Kernels of one record: bytes, checksum, properties, the message.

May import `cystore._native.memory` and what is below it: docs/architecture.md.
"""
