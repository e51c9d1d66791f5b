"""Functions that the commands share.

May import `cystore.celery.worker` and what is below it: docs/architecture.md.
"""
