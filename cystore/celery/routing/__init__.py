"""Results of other hosts: requests, answers, the client.

May import `cystore.celery.homes` and what is below it: docs/architecture.md.
"""
