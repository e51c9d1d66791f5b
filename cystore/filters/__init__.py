"""Filters of messages: SQL92 expressions over properties, and any callable.

May import `cystore._native.lookup` and what is below it: docs/architecture.md.
"""
