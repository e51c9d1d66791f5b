"""Functions that the commands share.

May import `cystore.cli.host` and what is below it: docs/architecture.md.
"""
