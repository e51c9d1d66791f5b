"""Commands about this host and this program, beside a store.

May import `cystore.cli.ha` and what is below it: docs/architecture.md.
"""
