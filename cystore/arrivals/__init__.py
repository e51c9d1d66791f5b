"""Followers of the growing log: named dispatchers of programs, listeners of arriving messages, waits of asyncio.

May import `cystore.attachment` and what is below it: docs/architecture.md.
"""
