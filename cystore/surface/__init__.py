"""Methods of `MessageStore` by subject, as classes that it inherits.

May import `cystore.once` and what is below it: docs/architecture.md.
"""
