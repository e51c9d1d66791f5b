"""Commands that make a store of another directory.

May import `cystore.cli.change` and what is below it: docs/architecture.md.
"""
