"""Commands that make something else: a store of another directory, a report.

May import `cystore.cli.change` and what is below it: docs/architecture.md.
"""
