"""The connection between master and slave: its bytes, sockets, secret and TLS.

May import `cystore.services.clean` and what is below it: docs/architecture.md.
"""
