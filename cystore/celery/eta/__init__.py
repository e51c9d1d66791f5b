"""Tasks that wait in the store for their ETA, instead of in the memory of a worker.

`keeping` puts a message into the store when a task is sent, `waiting` is the form of such a record and what can be done
to it, `sending` gives due messages to the broker.

May import `cystore.celery.lifecycle` and what is below it: docs/architecture.md.
"""
