"""Metrics of tasks, counted from the lifecycle log.

May import `cystore.celery.schedules` and what is below it: docs/architecture.md.
"""
