"""Commands about messages that wait until a time of their own, and the process that delivers them.

May import `cystore.cli.change` and what is below it: docs/architecture.md.
"""
