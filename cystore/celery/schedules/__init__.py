"""Schedules that the store keeps: added, paused and deleted while everything runs, and run by whoever delivers.

May import `cystore.celery.eta` and what is below it: docs/architecture.md.
"""
