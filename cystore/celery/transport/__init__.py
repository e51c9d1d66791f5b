"""A broker for Celery in a store: ``broker_url = "cystore:///path"``. No server, no network, one host.

May import `cystore.celery.base` and what is below it: docs/architecture.md.
"""

from cystore.celery.transport.transport import Transport

__all__ = ["Transport"]
