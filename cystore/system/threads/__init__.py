"""Threads, calls inside calls, repeated log lines.

May import `cystore.clock` and what is below it: docs/architecture.md.
"""
