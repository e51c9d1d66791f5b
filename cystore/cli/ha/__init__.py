"""`cystore ha`: commands about replication, one module each.

May import `cystore.cli.copies` and what is below it: docs/architecture.md.
"""
