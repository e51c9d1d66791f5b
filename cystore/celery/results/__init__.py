"""Parts of the result backend: bytes, expiry, waiting, full disk.

May import `cystore.celery.once` and what is below it: docs/architecture.md.
"""
