"""Commands that only look.

May import `cystore.celery` and what is below it: docs/architecture.md.
"""
