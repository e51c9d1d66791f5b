"""Commands that only look.

May import `cystore.operate` and what is below it: docs/architecture.md.
"""
