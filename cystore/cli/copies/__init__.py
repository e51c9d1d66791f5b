"""Commands that make something else: a store of another directory, a report.

May import `cystore.cli.timed` and what is below it: docs/architecture.md.
"""
