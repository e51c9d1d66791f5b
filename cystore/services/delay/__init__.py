"""Delayed messages: waiting, delivery, carrying forward.

May import `cystore.services.compact` and what is below it: docs/architecture.md.
"""
