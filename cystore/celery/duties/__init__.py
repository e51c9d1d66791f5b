"""The store's duties in a worker's main process, ticks, answers.

May import `cystore.celery.registry` and what is below it: docs/architecture.md.
"""
