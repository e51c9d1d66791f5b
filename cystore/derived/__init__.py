"""Files derived from the log: consume queues, index, dispatch, and reading through them. They may lag, be damaged or be
deleted.

May import `cystore.engine.inspect` and what is below it: docs/architecture.md.
"""
