"""Consumer groups: shared offsets, lag, and consumers that divide the queues among them.

May import `cystore.arrivals` and what is below it: docs/architecture.md.
"""
