"""Delayed messages: waiting, delivery, carrying forward.

May import `cystore.services.retention` and what is below it: docs/architecture.md.
"""
