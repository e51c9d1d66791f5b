"""The answers of the page and its API: read from the stores, as JSON objects.

May import `cystore.celery.worker` and what is below it: docs/architecture.md.
"""
