"""Results of other hosts: requests, answers, the client.

May import `cystore.celery.replicas` and what is below it: docs/architecture.md.
"""
