"""Functions that the commands share.

May import `cystore.web` and what is below it: docs/architecture.md.
"""
