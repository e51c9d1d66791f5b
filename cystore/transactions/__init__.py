"""Transactions: half messages, which consumers cannot read until they are committed.

May import `cystore.consumers` and what is below it: docs/architecture.md.
"""
