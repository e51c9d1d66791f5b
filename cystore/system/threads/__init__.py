"""Threads, calls inside of calls, log lines that are repeated.

May import `cystore.clock` and what is below it: docs/architecture.md.
"""
