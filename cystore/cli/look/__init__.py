"""Commands that only look.

May import `cystore.web` and what is below it: docs/architecture.md.
"""
