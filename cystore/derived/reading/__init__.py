"""Reads by queue offset, key and time; a log at one moment.

May import `cystore.derived.dispatch` and what is below it: docs/architecture.md.
"""
