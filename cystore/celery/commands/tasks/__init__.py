"""Commands about tasks, one module each.

May import `cystore.celery.commands.shared` and what is below it: docs/architecture.md.
"""
