"""Services: work beside appends and reads. Each is a small class with ``run_once``; a thread or a task calls it.

May import `cystore.dledger` and what is below it: docs/architecture.md.
"""
