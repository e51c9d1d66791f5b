"""Metrics of tasks, counted from the lifecycle log.

May import `cystore.celery.lifecycle` and what is below it: docs/architecture.md.
"""
