"""The commands of `manage.py`, one module each.

May import `cystore.contrib.django` and what is below it: docs/architecture.md.
"""
