"""Messages that are put once: a second put of a key within a window gives the place of the first one.

May import `cystore.transactions` and what is below it: docs/architecture.md.
"""
