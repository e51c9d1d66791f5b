"""Commands that change a store.

May import `cystore.cli.look` and what is below it: docs/architecture.md.
"""
