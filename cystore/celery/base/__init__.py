"""The plugin's base: records, processes, pools, leases, queues.

May import `cystore.celery.stores` and what is below it: docs/architecture.md.
"""
