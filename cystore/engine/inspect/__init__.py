"""A store seen from outside: is it one, which version, its numbers.

May import `cystore.engine.log` and what is below it: docs/architecture.md.
"""
