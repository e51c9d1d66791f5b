"""One process's access to one store: attach, its parts, detach.

May import `cystore.services.clean` and what is below it: docs/architecture.md.
"""
