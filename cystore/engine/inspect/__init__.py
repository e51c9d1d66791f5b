"""A store seen from outside: whether it is one, its version, its numbers.

May import `cystore.engine.log` and what is below it: docs/architecture.md.
"""
