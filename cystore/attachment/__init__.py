"""One process's access to one store: attach, its parts, detach.

May import `cystore.ha.election` and what is below it: docs/architecture.md.
"""
